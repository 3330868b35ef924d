package delivery

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/cursor"
	"spendhook/internal/redistest"
)

// shelf is a store with deliveries of one company.
type shelf struct {
	*Store

	t       *testing.T
	company uuid.UUID
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	return &shelf{Store: storeOn(redistest.New(t)), t: t, company: uuid.New()}
}

func storeOn(client redis.UniversalClient) *Store {
	return NewStore(StoreOptions{
		Client: client, Policy: Policy{Retention: 7 * 24 * time.Hour, DeadRetention: 30 * 24 * time.Hour},
		BreakerPause: time.Second, BreakerFailures: 3, Now: time.Now,
	})
}

// write stores deliveries as matching their events would have, all of the same
// moment: the hard case for paging.
func (s *shelf) write(sub uuid.UUID, ids []string, at time.Time, as func(*Record)) {
	s.t.Helper()
	for chunk := range slices.Chunk(ids, 500) {
		var writes []Write
		for _, id := range chunk {
			r := Ref{Ref: events.Ref{Company: s.company, ID: id}, Subscriber: sub}
			next := &Record{Status: StatusPending, EventType: "PAYMENT_PAID", Created: at.UnixMilli()}
			as(next)
			writes = append(writes, Write{Event: r.Ref, Changes: []Change{{Ref: r, Base: &Record{}, Next: next}}})
		}
		recorded, _, err := s.Record(s.t.Context(), at, "", writes)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, r := range recorded {
			if r.Err != nil || r.Found[0] != nil {
				s.t.Fatalf("not written: %+v", r)
			}
		}
	}
}

func dead(r *Record) { r.Status, r.Reason = StatusDead, ReasonExhausted }

// all reads every page and returns the delivery ids, failing on a repeat.
func (s *shelf) all(f Filter) []string {
	s.t.Helper()
	var ids []string
	seen := map[string]bool{}
	for {
		page, err := s.List(s.t.Context(), f)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, d := range page.Items {
			if seen[d.PublicID()] {
				s.t.Fatalf("%s came twice", d.PublicID())
			}
			seen[d.PublicID()] = true
			ids = append(ids, d.PublicID())
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			return ids
		}
	}
}

func names(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return ids
}

func TestListFilters(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	early, late := time.Now().Add(-time.Hour).Truncate(time.Millisecond), time.Now().Truncate(time.Millisecond)
	a, b := uuid.New(), uuid.New()
	s.write(a, names("early", 30), early, func(r *Record) { r.Status = StatusDelivered })
	s.write(a, names("late", 30), late, func(r *Record) { r.Status, r.EventType = StatusRetrying, "OTHER"; r.Due, r.Step = late.UnixMilli(), 1 })
	s.write(b, names("dead", 7), late, dead)

	between := early.Add(time.Minute)
	count := map[string]struct {
		f    Filter
		want int
	}{
		"subscriber":        {Filter{Subscriber: &a}, 60},
		"live":              {Filter{Subscriber: &a, Status: StatusRetrying}, 30},
		"delivered":         {Filter{Subscriber: &a, Status: StatusDelivered}, 30},
		"of company, live":  {Filter{Status: StatusRetrying}, 30},
		"of company, dead":  {Filter{Status: StatusDead}, 7},
		"event type":        {Filter{Subscriber: &a, EventType: "OTHER"}, 30},
		"from":              {Filter{Subscriber: &a, From: &between}, 30},
		"to":                {Filter{Subscriber: &a, To: &between}, 30},
		"exactly then":      {Filter{Subscriber: &a, From: &early, To: &early}, 30},
		"nothing":           {Filter{Subscriber: &b, Status: StatusDelivered}, 0},
		"unknown":           {Filter{Subscriber: &s.company}, 0},
		"dead in a span":    {Filter{Status: StatusDead, From: &between}, 7},
		"dead, but earlier": {Filter{Status: StatusDead, To: &between}, 0},
	}
	for name, c := range count {
		for _, size := range []int{1, 7, 100} {
			c.f.Company, c.f.Size = &s.company, size
			if got := s.all(c.f); len(got) != c.want {
				t.Errorf("%s by %d: %d, want %d", name, size, len(got), c.want)
			}
		}
	}
}

func TestListOfEventsPagesWithinAnEvent(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	now := time.Now()
	ids := names("evt", 5)
	for range 7 {
		s.write(uuid.New(), ids, now, func(r *Record) { r.Status = StatusDelivered })
	}
	for _, id := range ids { // as accepting them does
		event := redis.Z{Score: float64(now.UnixMilli()), Member: id}
		if err := s.client.ZAdd(t.Context(), events.IndexKey(s.company), event).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for size := 1; size < 10; size++ {
		if got := s.all(Filter{Company: &s.company, Size: size}); len(got) != 7*len(ids) {
			t.Errorf("by %d: %d deliveries listed, want %d", size, len(got), 7*len(ids))
		}
	}
}

func TestCursorOfAnotherCompanyIsRefused(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.write(uuid.New(), names("e", 3), time.Now(), dead)
	page, err := s.List(t.Context(), Filter{Company: &s.company, Status: StatusDead, Size: 1})
	if err != nil || page.Next == "" {
		t.Fatalf("page = %+v, %v", page, err)
	}
	other := uuid.New()
	for _, text := range []string{page.Next, "garbage", "e30"} {
		if _, err := s.List(t.Context(), Filter{Company: &other, Cursor: text}); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("cursor %q: %v", text, err)
		}
	}
}
