package archive_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

func windows(t *testing.T, db *storage.DB) (list []archive.Window) {
	t.Helper()
	err := db.Query(t.Context(), "windows", func(ctx context.Context, db bun.IDB) (err error) {
		list, err = archive.Windows(ctx, db)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// PostgreSQL has few locks, and takes some for each day that a statement may read. On this server one statement for all
// days, or all windows in one transaction, would need more than there are.
func TestManyDays(t *testing.T) {
	t.Parallel()
	url, remove, err := pgtest.Launch("max_connections=20", "max_locks_per_transaction=10")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	for name, url := range map[string]string{"sqlite": "", "postgres": url} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storagetest.Open(t, storage.Options{URL: url, DataDir: t.TempDir(), History: true, MaxConns: 4})
			s := archive.New(db)
			const days = 20 * archive.WindowDays
			var list, dead []history.Archived
			for i := range days {
				e := event(acme, fmt.Sprintf("e%03d", i), float64(noon+int64(i)*day))
				e.Deliveries = []history.ArchivedDelivery{delivery(e, one, 3, float64(noon+int64(2*days-i)*day))} // the newest died first
				list, dead = append(list, e), append(dead, only(acme, e.Ref.ID))
			}
			write(t, s, list...)
			if n := len(windows(t, db)); storage.IsPostgres(db) && n != 20 {
				t.Fatalf("%d windows", n)
			}
			for _, sp := range []history.Span{
				{}, {Subscriber: &one}, {Deaths: true}, {Subscriber: &one, Deaths: true},
			} {
				sp.Company, sp.High = acme, math.MaxInt64
				for _, ascending := range []bool{false, true} {
					sp.Ascending = ascending
					var want []string
					for i := range days {
						want = append(want, fmt.Sprintf("e%03d", i))
					}
					if sp.Deaths == ascending {
						slices.Reverse(want)
					}
					wantPages(t, s, sp, want)
				}
			}
			refs := []events.Ref{list[days-1].Ref, {Company: acme, ID: "none"}, list[0].Ref, list[days/2].Ref}
			got, err := s.Get(t.Context(), refs)
			if err != nil || got[1] != nil {
				t.Fatalf("%v, %v", got, err)
			}
			wantEqual(t, got[0], list[days-1])
			wantEqual(t, got[2], list[0])
			wantEqual(t, got[3], list[days/2])

			again := delivered(acme, "e000", float64(noon+(days-1)*day), two)
			write(t, s, again)
			wantEqual(t, get(t, s, acme, "e000"), again)
			erase(t, s, dead[0], dead[1], dead[days-1])
			for _, id := range []string{"e000", "e001", dead[days-1].Ref.ID} {
				if got := get(t, s, acme, id); got != nil {
					t.Errorf("%+v is left", got)
				}
			}
			for more, left := true, 102; more; left += 100 {
				if more, err = s.EraseCompany(t.Context(), acme, time.UnixMilli(noon+(days-3)*day), 100); err != nil {
					t.Fatal(err)
				}
				oldest := index(t, s, history.Span{Company: acme, Ascending: true})[0].ID
				if want := fmt.Sprintf("e%03d", min(left, days-2)); oldest != want {
					t.Errorf("the oldest that is left is %s, want %s", oldest, want)
				}
			}
			wantIndex(t, s, history.Span{Company: acme}, dead[days-2].Ref.ID)
			if got := companies(t, s); len(got) != 1 {
				t.Errorf("companies: %v", got)
			}
			if _, err := s.EraseCompany(t.Context(), acme, time.UnixMilli(noon+days*day), 100); err != nil {
				t.Fatal(err)
			}
			if got := companies(t, s); len(got) != 0 {
				t.Errorf("companies: %v", got)
			}
		})
	}
}

// wantPages reads an index in pages.
func wantPages(t *testing.T, s *archive.Store, sp history.Span, want []string) {
	t.Helper()
	var got []string
	for after := (history.Place{}); ; {
		page, err := s.Index(t.Context(), sp, after, 70)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range page {
			got = append(got, p.ID[:4])
		}
		if len(page) < 70 {
			break
		}
		after = page[len(page)-1]
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v: %v", sp, got)
	}
}
