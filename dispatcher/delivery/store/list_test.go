package store_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/cursor"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// listStore is a store with deliveries of one company.
type listStore struct {
	*store.Store

	t       *testing.T
	client  redis.UniversalClient
	company uuid.UUID
}

func newListStore(t *testing.T) *listStore {
	t.Helper()
	client := redistest.New(t)
	return &listStore{Store: storeOn(client), t: t, client: client, company: uuid.New()}
}

func storeOn(client redis.UniversalClient) *store.Store {
	return store.New(store.Options{
		Client: client, Policy: delivery.Policy{Retention: 7 * 24 * time.Hour, DeadRetention: 30 * 24 * time.Hour},
		Now: time.Now,
	})
}

// write stores deliveries with one creation time, as if their events had been matched. Equal
// times are the hard case for paging.
func (s *listStore) write(sub uuid.UUID, ids []string, at time.Time, as func(*delivery.Record)) {
	s.t.Helper()
	for chunk := range slices.Chunk(ids, 500) {
		var writes []store.Write
		for _, id := range chunk {
			r := delivery.Ref{Ref: events.Ref{Company: s.company, ID: id}, Subscriber: sub}
			next := &delivery.Record{Status: delivery.StatusPending, EventType: "PAYMENT_PAID", Created: at.UnixMilli()}
			as(next)
			writes = append(writes, store.Write{Event: r.Ref, Changes: []store.Change{{Ref: r, Base: &delivery.Record{}, Next: next}}})
		}
		recorded, _, err := s.Record(s.t.Context(), at, writes)
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

func dead(r *delivery.Record) { r.Status, r.Reason = delivery.StatusDead, delivery.ReasonExhausted }

// all reads every page and returns the delivery ids, failing on a repeat.
func (s *listStore) all(f store.Filter) []string {
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
	s := newListStore(t)
	early, late := time.Now().Add(-time.Hour).Truncate(time.Millisecond), time.Now().Truncate(time.Millisecond)
	a, b := uuid.New(), uuid.New()
	s.write(a, names("early", 30), early, func(r *delivery.Record) { r.Status = delivery.StatusDelivered })
	s.write(a, names("late", 30), late, func(r *delivery.Record) {
		r.Status, r.EventType = delivery.StatusRetrying, "OTHER"
		r.Due, r.Step = late.UnixMilli(), 1
	})
	s.write(b, names("dead", 7), late, dead)
	s.write(b, names("refused", 5), late, func(r *delivery.Record) {
		dead(r)
		r.Attempts = []attempt.Attempt{{Number: 1, StatusCode: 503, Error: "http_5xx"}, {Number: 2, StatusCode: 404, Error: "http_4xx"}}
	})
	s.write(b, names("unheard", 3), late, func(r *delivery.Record) {
		dead(r)
		r.EventType, r.Attempts = "OTHER", []attempt.Attempt{{Number: 1, Error: "timeout"}}
	})

	between := early.Add(time.Minute)
	count := map[string]struct {
		f    store.Filter
		want int
	}{
		"subscriber":        {store.Filter{Subscriber: &a}, 60},
		"live":              {store.Filter{Subscriber: &a, Statuses: []delivery.Status{delivery.StatusRetrying}}, 30},
		"delivered":         {store.Filter{Subscriber: &a, Statuses: []delivery.Status{delivery.StatusDelivered}}, 30},
		"of company, live":  {store.Filter{Statuses: []delivery.Status{delivery.StatusRetrying}}, 30},
		"of company, dead":  {store.Filter{Statuses: []delivery.Status{delivery.StatusDead}}, 15},
		"of some statuses":  {store.Filter{Subscriber: &a, Statuses: []delivery.Status{delivery.StatusDelivered, delivery.StatusRetrying}}, 60},
		"dead or live":      {store.Filter{Subscriber: &b, Statuses: []delivery.Status{delivery.StatusDead, delivery.StatusRetrying}}, 15},
		"error":             {store.Filter{Subscriber: &b, ErrorClasses: []string{"http_4xx"}}, 5},
		"any of two errors": {store.Filter{Subscriber: &b, ErrorClasses: []string{"http_4xx", "timeout"}}, 8},
		"an earlier error":  {store.Filter{Subscriber: &b, ErrorClasses: []string{"http_5xx"}}, 0},
		"code from":         {store.Filter{Statuses: []delivery.Status{delivery.StatusDead}, CodeFrom: 404}, 5},
		"code above":        {store.Filter{Statuses: []delivery.Status{delivery.StatusDead}, CodeFrom: 405}, 0},
		"code to":           {store.Filter{Subscriber: &b, CodeTo: 404}, 5},
		"code below":        {store.Filter{Subscriber: &b, CodeTo: 403}, 0},
		"all together": {store.Filter{
			Subscriber: &b, Statuses: []delivery.Status{delivery.StatusDead}, EventTypes: []string{"OTHER", "THIRD"}, ErrorClasses: []string{"timeout", "dns"}, From: &between, To: &late,
		}, 3},
		"all but one":       {store.Filter{Subscriber: &b, Statuses: []delivery.Status{delivery.StatusDead}, EventTypes: []string{"OTHER"}, CodeFrom: 404, CodeTo: 404, From: &between}, 0},
		"event type":        {store.Filter{Subscriber: &a, EventTypes: []string{"OTHER"}}, 30},
		"from":              {store.Filter{Subscriber: &a, From: &between}, 30},
		"to":                {store.Filter{Subscriber: &a, To: &between}, 30},
		"exactly then":      {store.Filter{Subscriber: &a, From: &early, To: &early}, 30},
		"nothing":           {store.Filter{Subscriber: &b, Statuses: []delivery.Status{delivery.StatusDelivered}}, 0},
		"unknown":           {store.Filter{Subscriber: &s.company}, 0},
		"dead in a span":    {store.Filter{Statuses: []delivery.Status{delivery.StatusDead}, From: &between}, 15},
		"dead, but earlier": {store.Filter{Statuses: []delivery.Status{delivery.StatusDead}, To: &between}, 0},
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
	s := newListStore(t)
	now := time.Now()
	ids := names("evt", 5)
	for range 7 {
		s.write(uuid.New(), ids, now, func(r *delivery.Record) { r.Status = delivery.StatusDelivered })
	}
	for _, id := range ids { // as accepting them does
		event := redis.Z{Score: float64(now.UnixMilli()), Member: id}
		if err := s.client.ZAdd(t.Context(), layout.IndexKey(s.company), event).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for size := 1; size < 10; size++ {
		if got := s.all(store.Filter{Company: &s.company, Size: size}); len(got) != 7*len(ids) {
			t.Errorf("by %d: %d deliveries listed, want %d", size, len(got), 7*len(ids))
		}
	}
}

// A damaged key of one event leaves the deliveries and the summaries of the others.
func TestDamagedDeliveriesAreLeftOut(t *testing.T) {
	t.Parallel()
	s := newListStore(t)
	now, ids := time.Now(), names("evt", 3)
	s.write(uuid.New(), ids, now, func(r *delivery.Record) { r.Status = delivery.StatusDelivered })
	refs := make([]events.Ref, len(ids))
	for i, id := range ids {
		refs[i] = events.Ref{Company: s.company, ID: id}
		event := redis.Z{Score: float64(now.UnixMilli()), Member: id}
		if err := s.client.ZAdd(t.Context(), layout.IndexKey(s.company), event).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{partition.Key(s.company, "d:"+refs[1].String()), layout.EventKey(refs[2])} {
		s.client.Del(t.Context(), key)
		if err := s.client.LPush(t.Context(), key, "damaged").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.all(store.Filter{Company: &s.company}); len(got) != 2 {
		t.Errorf("listed: %v", got)
	}
	sums, err := s.SumUp(t.Context(), refs, store.Filter{})
	if err != nil || sums[0].Status != store.EventDelivered || sums[1].Status != store.EventNoSubscriber || sums[2].Status != store.EventDelivered {
		t.Errorf("summed up: %+v, %v", sums, err)
	}
}

// A page reads a bounded number of deliveries, however many each event has.
func TestPageReadsABoundedNumberOfDeliveries(t *testing.T) {
	t.Parallel()
	s := newListStore(t)
	now := time.Now()
	const fanout, count = 400, 60
	for i := range count {
		id := fmt.Sprintf("evt-%03d", i)
		pipe := s.client.Pipeline()
		for range fanout {
			pipe.HSet(t.Context(), partition.Key(s.company, "d:"+events.Ref{Company: s.company, ID: id}.String()), uuid.NewString(), `D1|{"e":"PAYMENT_PAID","c":1}`)
		}
		pipe.ZAdd(t.Context(), layout.IndexKey(s.company), redis.Z{Score: float64(now.UnixMilli()), Member: id})
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	f := store.Filter{Company: &s.company, EventTypes: []string{"NONE"}}
	pages := 0
	for ; ; pages++ {
		page, err := s.List(t.Context(), f)
		if err != nil || len(page.Items) > 0 {
			t.Fatal(page, err)
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	if most := 1000 * 8; pages < fanout*count/(most+fanout) {
		t.Errorf("%d deliveries in %d pages, of at most %d", fanout*count, pages+1, most)
	}
	sums, err := s.SumUp(t.Context(), []events.Ref{{Company: s.company, ID: "evt-000"}, {Company: s.company, ID: "none"}}, f)
	if err != nil || sums[0] != (store.EventSummary{Status: store.EventDelivered, Work: fanout / 8}) || sums[1] != (store.EventSummary{Status: store.EventNoSubscriber}) {
		t.Errorf("summed up: %+v, %v", sums, err)
	}
}

func TestCursorOfAnotherCompanyIsRefused(t *testing.T) {
	t.Parallel()
	s := newListStore(t)
	s.write(uuid.New(), names("e", 3), time.Now(), dead)
	page, err := s.List(t.Context(), store.Filter{Company: &s.company, Statuses: []delivery.Status{delivery.StatusDead}, Size: 1})
	if err != nil || page.Next == "" {
		t.Fatalf("page = %+v, %v", page, err)
	}
	other := uuid.New()
	for _, text := range []string{page.Next, "garbage", "e30"} {
		if _, err := s.List(t.Context(), store.Filter{Company: &other, Cursor: text}); !errors.Is(err, cursor.ErrBad) {
			t.Errorf("cursor %q: %v", text, err)
		}
	}
}
