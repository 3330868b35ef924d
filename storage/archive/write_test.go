package archive_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

func TestAnEventIsWrittenAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		a := delivered(acme, "a", float64(noon), one, two)
		write(t, s, a)
		write(t, s, a, a)
		wantEqual(t, get(t, s, acme, "a"), a)

		b := delivered(acme, "a", float64(noon), two, three)
		b.Value += "replaced"
		b.Deliveries[0] = delivery(b, two, 10, float64(noon)+1) // higher, also as a number
		write(t, s, b)
		merged := b
		merged.Deliveries = append([]history.ArchivedDelivery{a.Deliveries[0]}, b.Deliveries...)
		wantEqual(t, get(t, s, acme, "a"), merged)
		if got := names(index(t, s, history.Span{Company: acme, Deaths: true})); got != "a/"+two.String() {
			t.Errorf("dead: %s", got)
		}

		write(t, s, b, a)
		write(t, s, a) // late: delivery two with a lower version
		merged.Value = a.Value
		wantEqual(t, get(t, s, acme, "a"), merged)

		c := delivered(acme, "a", float64(noon), two)
		c.Deliveries[0] = delivery(c, two, 11, 0) // delivered after a retry
		write(t, s, c)
		merged.Deliveries[1] = c.Deliveries[0]
		wantEqual(t, get(t, s, acme, "a"), merged)
		if got := index(t, s, history.Span{Company: acme, Deaths: true}); len(got) != 0 {
			t.Errorf("dead: %v", got)
		}
		if got := index(t, s, history.Span{Company: acme}); len(got) != 1 {
			t.Errorf("events: %v", got)
		}
	})
}

// After the retention of Redis an id may be accepted again.
func TestAnIDIsAcceptedTwice(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		first, second := delivered(acme, "a", float64(noon), one), delivered(acme, "a", float64(noon+8*day), two)
		write(t, s, second)
		write(t, s, first)
		wantEqual(t, get(t, s, acme, "a"), second)
		places := index(t, s, history.Span{Company: acme})
		if want := []history.Place{{MS: second.Place, ID: "a"}, {MS: first.Place, ID: "a"}}; !slices.Equal(places, want) {
			t.Errorf("%v", places)
		}
		if got := index(t, s, history.Span{Company: acme, Subscriber: &one}); len(got) != 1 || got[0].MS != first.Place {
			t.Errorf("of the subscriber: %v", got)
		}
	})
}

func TestWrongValues(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, s *archive.Store, _ *storage.DB) {
		t.Helper()
		if err := s.Write(t.Context(), nil); err != nil {
			t.Error(err)
		}
		for _, value := range []string{"", "S", "S1782907200000", "S178290720000x00000001", "S178290720000000000x01", "S-78290720000000000001"} {
			a := event(acme, "bad", float64(noon))
			a.Value = value
			if err := s.Write(t.Context(), []history.Archived{event(acme, "good", float64(noon)), a}); err == nil {
				t.Errorf("%q was written", value)
			}
		}
		if got := index(t, s, history.Span{Company: acme}); len(got) != 0 {
			t.Errorf("%v", got)
		}
		damaged := delivered(acme, "a", float64(noon), one)
		damaged.Deliveries[0].Record = "?"
		write(t, s, damaged)
		wantEqual(t, get(t, s, acme, "a"), damaged)
		whole := delivered(acme, "a", float64(noon), one)
		write(t, s, whole)
		write(t, s, damaged)
		wantEqual(t, get(t, s, acme, "a"), whole)
		elsewhere := event(acme, "b", float64(noon)) // its place is not in the millisecond of its acceptance
		elsewhere.Place++
		write(t, s, elsewhere)
		wantEqual(t, get(t, s, acme, "b"), event(acme, "b", float64(noon)))
	})
}

// Replicas write the same events at the same time, also the first ones of a day.
func TestConcurrentWrites(t *testing.T) {
	t.Parallel()
	storagetest.OnBothHistories(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		var list, reverse []history.Archived
		for i := range 200 {
			company := uuid.UUID{byte(i % 7)}
			list = append(list, delivered(company, "e"+string(rune('A'+i%50)), float64(noon+int64(i%3)*day), one, two))
		}
		reverse = slices.Clone(list)
		slices.Reverse(reverse)
		var run []func()
		for _, batch := range [][]history.Archived{list, reverse, list, reverse} {
			run = append(run, func() {
				s := archive.New(db)
				for part := range slices.Chunk(batch, 50) {
					if err := s.Write(t.Context(), part); err != nil {
						t.Error(err)
					}
				}
			})
		}
		storagetest.Race(run...)
		s := archive.New(db)
		for _, a := range list {
			if got := get(t, s, a.Ref.Company, a.Ref.ID); got == nil || len(got.Deliveries) != 2 {
				t.Fatalf("%v: %+v", a.Ref, got)
			}
		}
		if got := companies(t, s); len(got) != 7 {
			t.Errorf("companies: %v", got)
		}
	})
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]storage.Options{
		"sqlite":   {DataDir: t.TempDir()},
		"postgres": {URL: "postgres://127.0.0.1:1/none"},
	} {
		o.History = true
		db, err := storage.Open(o) // not migrated
		if err != nil {
			t.Fatal(err)
		}
		s := archive.New(db)
		_, indexErr := s.Index(t.Context(), history.Span{}, history.Place{}, 1)
		_, getErr := s.Get(t.Context(), []events.Ref{{ID: "a"}})
		_, companiesErr := s.Companies(t.Context(), uuid.Nil, 1)
		for what, err := range map[string]error{
			"index": indexErr, "get": getErr, "companies": companiesErr,
			"write": s.Write(t.Context(), []history.Archived{event(acme, "a", 1)}),
		} {
			if !errors.Is(err, events.ErrUnavailable) || !errors.Is(err, storage.ErrUnavailable) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		db.Close()
	}
}
