package archive_test

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/pgtest"
	"spendhook/storage"
	"spendhook/storage/archive"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	acme  = storagetest.Acme
	bolt  = storagetest.Bolt
	noon  = time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC).UnixMilli()
	one   = uuid.MustParse("10000000-0000-4000-8000-000000000000")
	two   = uuid.MustParse("20000000-0000-4000-8000-000000000000")
	three = uuid.MustParse("30000000-0000-4000-8000-000000000000")
)

const day = 24 * 60 * 60 * 1000 // ms

func onBoth(t *testing.T, test func(*testing.T, *archive.Store, *storage.DB)) {
	t.Helper()
	storagetest.OnBothHistories(t, func(t *testing.T, db *storage.DB) {
		t.Helper()
		test(t, archive.New(db), db)
	})
}

// event is an event without deliveries. Its nonce is of its place.
func event(company uuid.UUID, id string, place float64) history.Archived {
	return history.Archived{
		Ref: events.Ref{Company: company, ID: id}, Place: place,
		Value: fmt.Sprintf(`S%013.0f%08x%010x"event":"PAID","metadata":{}}`, math.Floor(place), uint32(place), 7),
	}
}

// delivery is a delivery that was created with its event; died 0: it is not dead.
func delivery(of history.Archived, subscriber uuid.UUID, version int, died float64) history.ArchivedDelivery {
	letter := 'D'
	if died > 0 {
		letter = 'X'
	}
	return history.ArchivedDelivery{
		Subscriber: subscriber, Record: fmt.Sprintf(`%c%d|{"e":"PAID"}`, letter, version),
		Created: int64(of.Place), Died: died,
	}
}

// delivered is an event with one delivery for each of the subscribers.
func delivered(company uuid.UUID, id string, place float64, subscribers ...uuid.UUID) history.Archived {
	a := event(company, id, place)
	for _, s := range subscribers {
		a.Deliveries = append(a.Deliveries, delivery(a, s, 3, 0))
	}
	return a
}

func write(t *testing.T, s *archive.Store, list ...history.Archived) {
	t.Helper()
	if err := s.Write(t.Context(), list); err != nil {
		t.Fatal(err)
	}
}

// get reads one event.
func get(t *testing.T, s *archive.Store, company uuid.UUID, id string) *history.Archived {
	t.Helper()
	got, err := s.Get(t.Context(), []events.Ref{{Company: company, ID: id}})
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return got[0]
}

func wantEqual(t *testing.T, got *history.Archived, want history.Archived) {
	t.Helper()
	if got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// index reads the whole index of a span.
func index(t *testing.T, s *archive.Store, sp history.Span) []history.Place {
	t.Helper()
	if sp.High == 0 {
		sp.High = math.MaxInt64
	}
	places, err := s.Index(t.Context(), sp, history.Place{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return places
}

// names joins the ids of places.
func names(places []history.Place) string {
	ids := make([]string, len(places))
	for i, p := range places {
		ids[i] = p.ID
	}
	return strings.Join(ids, " ")
}

func companies(t *testing.T, s *archive.Store) []uuid.UUID {
	t.Helper()
	list, err := s.Companies(t.Context(), uuid.Nil, 1000)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clip(list)
}
