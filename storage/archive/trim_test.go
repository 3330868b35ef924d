package archive_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events/history"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

func TestTrim(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, db *storage.DB) {
		t.Helper()
		midnight := noon - day/2
		var list []history.Archived
		for i, at := range []int64{noon - 20*day, midnight - 1, midnight, noon} {
			list = append(list, delivered(acme, fmt.Sprint("e", i), float64(at), one))
		}
		for i := range 2500 {
			list = append(list, delivered(bolt, fmt.Sprint("e", i), float64(noon-2*day+int64(i)), one))
		}
		for part := range slices.Chunk(list, 500) {
			write(t, s, part...)
		}
		erase(t, s, only(bolt, "e0"))
		if err := db.Analyze(t.Context(), "history_events"); err != nil { // PostgreSQL counts the rows
			t.Fatal(err)
		}
		for _, want := range []int64{2502, 0} {
			if n, err := s.Trim(t.Context(), time.UnixMilli(noon)); err != nil || n != want {
				t.Errorf("%d, %v", n, err)
			}
		}
		wantIndex(t, s, history.Span{Company: acme}, "e3 e2")
		wantTerms(t, db, 2)
		wantIndex(t, s, history.Span{Company: acme, Subscriber: &one}, "e3 e2")
		wantIndex(t, s, history.Span{Company: bolt, Subscriber: &one}, "")
		if got := companies(t, s); !slices.Equal(got, []uuid.UUID{acme}) {
			t.Errorf("companies: %v", got)
		}
		write(t, s, list[0]) // late
		wantIndex(t, s, history.Span{Company: acme}, "e3 e2 e0")
	})
}

// Trim waits for a reader only for a short time, because others wait for Trim meanwhile.
func TestTrimWhileReading(t *testing.T) {
	t.Parallel()
	db := storagetest.Open(t, storage.Options{URL: storagetest.Postgres(t), History: true})
	s := archive.New(db)
	write(t, s, event(acme, "old", float64(noon-5*day)), event(acme, "new", float64(noon)))
	hold(t, db, func() {
		_, err := s.Trim(t.Context(), time.UnixMilli(noon))
		if err == nil || errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%v, want one of a lock", err)
		}
		wantIndex(t, s, history.Span{Company: acme}, "new old")
	}, "SELECT FROM history_events")
	if _, err := s.Trim(t.Context(), time.UnixMilli(noon)); err != nil {
		t.Fatal(err)
	}
	wantIndex(t, s, history.Span{Company: acme}, "new")
}
