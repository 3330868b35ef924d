package archive_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/partition"
	"spendhook/internal/waittest"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

// only is what Erase needs of an event that is in the history.
func only(company uuid.UUID, id string) history.Archived {
	return history.Archived{Ref: events.Ref{Company: company, ID: id}}
}

func erase(t *testing.T, s *archive.Store, list ...history.Archived) {
	t.Helper()
	if err := s.Erase(t.Context(), list); err != nil {
		t.Fatal(err)
	}
}

func wantIndex(t *testing.T, s *archive.Store, sp history.Span, want string) {
	t.Helper()
	if got := names(index(t, s, sp)); got != want {
		t.Errorf("%+v: %q, want %q", sp, got, want)
	}
}

// wantTerms checks how many events have terms.
func wantTerms(t *testing.T, db *storage.DB, want int) {
	t.Helper()
	query := "SELECT count(*) FROM history_terms_docsize"
	if storage.IsPostgres(db) {
		query = "SELECT count(terms) FROM history_events"
	}
	var got int
	err := db.Query(t.Context(), "count", func(ctx context.Context, db bun.IDB) error { return db.NewRaw(query).Scan(ctx, &got) })
	if err != nil || got != want {
		t.Errorf("%d events with terms, want %d, %v", got, want, err)
	}
}

func TestErase(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, db *storage.DB) {
		t.Helper()
		erase(t, s)
		erase(t, s, only(acme, "none"))
		first, again := delivered(acme, "a", float64(noon), one), delivered(acme, "a", float64(noon+8*day), one)
		other := delivered(bolt, "a", float64(noon), one)
		dead := event(acme, "b", float64(noon))
		dead.Deliveries = []history.ArchivedDelivery{delivery(dead, one, 3, float64(noon)+1)}
		write(t, s, first, again, other, dead)
		erase(t, s, only(acme, "a"), only(acme, "b"), only(acme, "a"))
		late := first
		late.Deliveries = []history.ArchivedDelivery{delivery(late, two, 9, float64(noon)+1)}
		write(t, s, first, late, again, dead)
		for _, id := range []string{"a", "b"} {
			if got := get(t, s, acme, id); got != nil {
				t.Errorf("%+v is left", got)
			}
		}
		for _, sp := range []history.Span{{}, {Subscriber: &one}, {Subscriber: &two}, {Deaths: true}, {Subscriber: &one, Deaths: true}} {
			sp.Company = acme
			wantIndex(t, s, sp, "")
		}
		wantEqual(t, get(t, s, bolt, "a"), other)
		wantTerms(t, db, 1)
		if got := companies(t, s); !slices.Equal(got, []uuid.UUID{bolt}) {
			t.Errorf("companies: %v", got)
		}

		third := delivered(acme, "a", float64(noon+16*day), two)
		write(t, s, third, again)
		wantEqual(t, get(t, s, acme, "a"), third)
		wantIndex(t, s, history.Span{Company: acme}, "a")
		if got := companies(t, s); len(got) != 2 {
			t.Errorf("companies: %v", got)
		}
	})
}

// An event that is erased before it is written is not written, if Erase knows its header.
func TestEraseBeforeWrite(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		a, b := delivered(acme, "a", float64(noon), one), delivered(acme, "b", float64(noon), one)
		header := a
		header.Value = a.Value[:32]
		erase(t, s, header)
		write(t, s, a, b)
		if get(t, s, acme, "a") != nil {
			t.Error("an erased event was written")
		}
		wantIndex(t, s, history.Span{Company: acme, Subscriber: &one}, "b")
		header.Value = "S"
		if err := s.Erase(t.Context(), []history.Archived{header}); err == nil {
			t.Error("erased without a header")
		}
	})
}

// Either Erase finds the event or Write finds it erased.
func TestEraseWhileWriting(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		for i := range 30 {
			var list, headers []history.Archived
			for j := range 20 {
				a := delivered(acme, fmt.Sprint(i, "-", j), float64(noon), one, two)
				list = append(list, a)
				a.Value = a.Value[:22]
				headers = append(headers, a)
			}
			slices.Reverse(headers)
			storagetest.Race(func() { write(t, s, list...) }, func() { erase(t, s, headers...) }, func() { write(t, s, list...) })
		}
		wantIndex(t, s, history.Span{Company: acme}, "")
		wantIndex(t, s, history.Span{Company: acme, Subscriber: &one}, "")
		if got := companies(t, s); len(got) != 0 {
			t.Errorf("companies: %v", got)
		}
	})
}

func TestEraseCompany(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		var list []history.Archived
		for i := range 25 {
			list = append(list, delivered(acme, fmt.Sprint("e", i), float64(noon+int64(i%3)*day), one))
		}
		kept := delivered(bolt, "e1", float64(noon), one)
		write(t, s, append(list, kept)...)
		until := time.UnixMilli(noon + 2*day)
		for _, want := range []bool{true, true, false, false} {
			if more, err := s.EraseCompany(t.Context(), acme, until, 10); err != nil || more != want {
				t.Errorf("%v, %v", more, err)
			}
		}
		write(t, s, list...)
		wantIndex(t, s, history.Span{Company: acme}, "")
		wantIndex(t, s, history.Span{Company: acme, Subscriber: &one}, "")
		wantEqual(t, get(t, s, bolt, "e1"), kept)
		if got := companies(t, s); !slices.Equal(got, []uuid.UUID{bolt}) {
			t.Errorf("companies: %v", got)
		}
		next := event(acme, "next", float64(noon+2*day+1))
		write(t, s, next)
		if more, err := s.EraseCompany(t.Context(), acme, until, 10); err != nil || more {
			t.Errorf("%v, %v", more, err)
		}
		wantEqual(t, get(t, s, acme, "next"), next)
		if got := companies(t, s); len(got) != 2 {
			t.Errorf("companies: %v", got)
		}
	})
}

// A company stays in the list if its last event is erased while another one is written.
func TestACompanyIsListedWhileItsEventsChange(t *testing.T) {
	t.Parallel()
	db := storagetest.Open(t, storage.Options{URL: storagetest.Postgres(t), History: true})
	s := archive.New(db)
	last, next := event(acme, "last", float64(noon)), delivered(acme, "next", float64(noon), one)
	write(t, s, last)
	var writing sync.WaitGroup
	erased := make(chan error, 1)
	hold(t, db, func() {
		writing.Go(func() { write(t, s, next) })
		waittest.Until(t, "Write waits with its delivery", func() bool { return waiting(t, db) == 1 })
		go func() { erased <- s.Erase(t.Context(), []history.Archived{last}) }()
		waittest.Until(t, "Erase waits for Write", func() bool { return waiting(t, db) == 2 || len(erased) > 0 })
	}, "INSERT INTO history_deliveries (company, id, accepted, nonce, subscriber, created, died, version, record)"+
		" VALUES (?, 'next', ?, ?, ?, 1, 0, 1, '')", storage.Key(acme), noon, uint32(noon), storage.Key(one))
	writing.Wait()
	if err := <-erased; err != nil {
		t.Error(err)
	}
	if got := companies(t, s); len(got) != 1 {
		t.Errorf("companies: %v", got)
	}
	wantIndex(t, s, history.Span{Company: acme}, "next")
}

// hold runs a statement in a transaction, calls a function, and rolls back.
func hold(t *testing.T, db *storage.DB, while func(), statement string, args ...any) {
	t.Helper()
	rollBack := errors.New("roll back")
	err := db.Write(t.Context(), "hold", func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.NewRaw(statement, args...).Exec(ctx); err != nil {
			return err
		}
		while()
		return rollBack
	})
	storagetest.WantError(t, err, rollBack)
}

// waiting counts the connections to a database of PostgreSQL that wait for a lock.
func waiting(t *testing.T, db *storage.DB) (n int) {
	t.Helper()
	err := db.Query(t.Context(), "locks", func(ctx context.Context, db bun.IDB) error {
		return db.NewRaw("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(ctx, &n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCompaniesAreListedInOrder(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		var list []history.Archived
		var want []uuid.UUID
		for i := range 300 {
			company := uuid.NewSHA1(uuid.Nil, []byte{byte(i), byte(i >> 8)})
			list, want = append(list, event(company, "e", float64(noon))), append(want, company)
		}
		write(t, s, list...)
		slices.SortFunc(want, func(a, b uuid.UUID) int {
			return cmp.Or(cmp.Compare(partition.Of(a), partition.Of(b)), bytes.Compare(a[:], b[:]))
		})
		var got []uuid.UUID
		for last := uuid.Nil; ; last = got[len(got)-1] {
			page, err := s.Companies(t.Context(), last, 70)
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, page...); len(page) < 70 {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d companies, in another order", len(got))
		}
	})
}
