package traffic

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events/layout"
	"spendhook/internal/redistest"
)

// bench is a store and two replicas that count, by one clock.
type bench struct {
	t      *testing.T
	client redis.UniversalClient
	store  *Store
	a, b   *Counter
	now    time.Time
}

// newBench starts its clock 8 days ago, at the start of an hour: counts that are ahead of
// Redis's clock are ignored.
func newBench(t *testing.T) *bench {
	t.Helper()
	h := &bench{t: t, client: redistest.New(t), now: time.Now().Add(-8 * 24 * time.Hour).Truncate(time.Hour)}
	clock := func() time.Time { return h.now }
	h.store = NewStore(h.client, clock)
	pending := func(context.Context) (int64, error) { return 12, nil }
	h.a, h.b = NewCounter(h.store, pending), NewCounter(h.store, pending)
	return h
}

func (h *bench) write() {
	h.t.Helper()
	if err := errors.Join(h.a.write(h.t.Context()), h.b.write(h.t.Context())); err != nil {
		h.t.Fatal(err)
	}
}

func (h *bench) company(id uuid.UUID) Series {
	h.t.Helper()
	series, err := h.store.Read(h.t.Context(), &id, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	return series
}

func (h *bench) subscriber(company, id uuid.UUID) Series {
	h.t.Helper()
	series, err := h.store.Read(h.t.Context(), &company, &id)
	if err != nil {
		h.t.Fatal(err)
	}
	return series
}

// The counts of two replicas add up, by minute and by hour, for the company, the subscriber and all. A call
// that is repeated after a lost answer counts once.
func TestReplicasAddUp(t *testing.T) {
	t.Parallel()
	h := newBench(t)
	h.client.AddHook(redistest.Repeats())
	company, sub := uuid.New(), uuid.New()
	if err := h.client.HSet(t.Context(), layout.StateKey(company), "pending", 7).Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Counter{h.a, h.b} {
		c.Accepted(company, 3)
		c.Attempted(Attempt{Company: company, Subscriber: sub, StatusCode: http.StatusNoContent, Success: true, Duration: 20 * time.Millisecond})
		c.Attempted(Attempt{Company: company, Subscriber: sub, StatusCode: http.StatusNotFound, Duration: 20 * time.Millisecond})
		c.Attempted(Attempt{Company: company, Subscriber: sub, StatusCode: http.StatusBadGateway, Duration: 20 * time.Millisecond, Dead: true})
		c.Attempted(Attempt{Company: company, Subscriber: sub, Duration: 5 * time.Second})
	}
	for _, c := range []*Counter{h.a, h.b} {
		if err := c.write(redistest.Repeated(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	series := h.company(company)
	for name, p := range map[string]Point{"minute": series.Minutes[minutes-1], "hour": series.Hours[hours-1]} {
		if p.At != h.now.UTC() || p.Accepted != 6 || p.Delivered != 2 || p.Failed != 6 || p.Dead != 2 || p.Pending != 7 {
			t.Errorf("%s of the company: %+v", name, p)
		}
	}
	p := h.subscriber(company, sub).Minutes[minutes-1]
	if p.Delivered != 2 || p.Refused != 2 || p.Erred != 2 || p.Unanswered != 2 || p.Failed != 6 {
		t.Errorf("of the subscriber: %+v", p)
	}
	if p.P50 < 15*time.Millisecond || p.P50 > 25*time.Millisecond || p.P95 < 4*time.Second || p.P95 > 6*time.Second {
		t.Errorf("latencies %v, %v", p.P50, p.P95)
	}
	all, err := h.store.Read(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := all.Minutes[minutes-1]; p.Accepted != 6 || p.Failed != 6 || p.Pending != 12 {
		t.Errorf("of all: %+v", p)
	}
	for _, of := range []*uuid.UUID{nil, &company} {
		failing, slow, err := h.store.Worst(t.Context(), of, 10)
		if err != nil || len(failing) != 1 || failing[0].Company != company || failing[0].Subscriber != sub || failing[0].Failed != 6 || len(slow) != 1 || slow[0].P95 < time.Second {
			t.Errorf("the worst of %v: %+v %+v %v", of, failing, slow, err)
		}
	}
}

// A minute is kept for three hours and an hour for seven days. Without traffic its counts are 0, and its
// pending events are those of the one before.
func TestMinutesAndHoursAreKeptForATime(t *testing.T) {
	t.Parallel()
	h := newBench(t)
	company, start := uuid.New(), h.now
	if err := h.client.HSet(t.Context(), layout.StateKey(company), "pending", 4).Err(); err != nil {
		t.Fatal(err)
	}
	for _, minute := range []int{0, 1, 3, 179, 181, 182} {
		h.now = start.Add(time.Duration(minute) * time.Minute)
		h.a.Accepted(company, 10+minute)
		h.write()
	}
	series := h.company(company)
	for i, p := range series.Minutes {
		minute := 182 - (minutes - 1) + i
		want := int64(0)
		switch minute {
		case 3, 179, 181, 182:
			want = int64(10 + minute)
		}
		if p.Accepted != want || p.At != start.Add(time.Duration(minute)*time.Minute).UTC() || p.Pending != 4 {
			t.Errorf("minute %d: %+v", minute, p)
		}
	}
	if sum := Sum(series.Hours); sum.Accepted != 60+546 || series.Hours[hours-1].Accepted != 20+363 {
		t.Errorf("hours: %+v, the last %+v", sum, series.Hours[hours-1])
	}
	// A replica whose clock is a little behind counts in the minute that it has; one that
	// is hours behind in none.
	h.now = start.Add(181 * time.Minute)
	h.b.Accepted(company, 1)
	h.write()
	h.now = start
	h.b.Accepted(company, 1)
	h.write()
	h.now = start.Add(182 * time.Minute)
	series = h.company(company)
	if n := series.Minutes[minutes-2].Accepted; n != 192 || Sum(series.Minutes).Accepted != 13+189+192+192 {
		t.Errorf("late counts: %d, %d in all", n, Sum(series.Minutes).Accepted)
	}
	h.now = h.now.Add(6 * time.Hour)
	if sum := Sum(h.company(company).Minutes); sum.Accepted != 0 || sum.Pending != 0 {
		t.Errorf("six hours later: %+v", sum)
	}
}

func TestCountersAreSmallAndExpire(t *testing.T) {
	t.Parallel()
	h := newBench(t)
	company, sub := uuid.New(), uuid.New()
	h.a.Attempted(Attempt{Company: company, Subscriber: sub, Duration: time.Second})
	h.write()
	keys, err := h.client.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 10 {
		t.Fatalf("%v %v", keys, err)
	}
	for _, key := range keys {
		life, err := h.client.TTL(t.Context(), key).Result()
		if err != nil || life <= 0 || life > 7*24*time.Hour {
			t.Errorf("%s expires in %v, %v", key, life, err)
		}
		if text, err := h.client.Get(t.Context(), key).Result(); err == nil && len(text) > 2048 {
			t.Errorf("%s has %d bytes", key, len(text))
		}
	}
}

// Large counts are exact to one part in 4,096, also when they are the sum of many.
func TestLargeCounts(t *testing.T) {
	t.Parallel()
	h := newBench(t)
	company := uuid.New()
	h.a.Accepted(company, 1_000_000)
	h.write()
	if n := h.company(company).Minutes[minutes-1].Accepted; math.Abs(float64(n)-1e6) > 1e6/4096 {
		t.Errorf("a million is %d", n)
	}
	for range 300 {
		h.a.Accepted(company, 5)
		h.write()
	}
	if n := h.company(company).Minutes[minutes-1].Accepted; math.Abs(float64(n)-1_001_500) > 2500 {
		t.Errorf("with 300 times 5 it is %d", n)
	}
}

// At most half of the gathered subscribers are of one company.
func TestACompanyLeavesPlacesForOthers(t *testing.T) {
	t.Parallel()
	h := newBench(t)
	flood, other := uuid.New(), uuid.New()
	for range maxGathered {
		h.a.Attempted(Attempt{Company: flood, Subscriber: uuid.New(), Success: true})
	}
	if n := len(h.a.companies[flood].subscribers); n != maxGathered/2 {
		t.Errorf("the flood has %d", n)
	}
	for range 100 {
		h.a.Attempted(Attempt{Company: other, Subscriber: uuid.New(), Success: true})
	}
	if n := len(h.a.companies[other].subscribers); n != 100 {
		t.Errorf("the other company has %d", n)
	}
	if h.a.companies[flood].n[1] != maxGathered {
		t.Error("the sums of the company lack something")
	}
}

// Counts are dropped while Redis is down. Later counts are written.
func TestCountsAreDroppedWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	h := newBench(t)
	h.a.Accepted(uuid.New(), 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("Redis is unavailable"))
	if err := h.a.write(ctx); err == nil {
		t.Error("written while Redis is unavailable")
	}
	company := uuid.New()
	h.a.Accepted(company, 1)
	h.write()
	if p := h.company(company).Minutes[minutes-1]; p.Accepted != 1 {
		t.Errorf("after it came back: %+v", p)
	}
}
