package endpoint

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

func id(n int) uuid.UUID { return uuid.UUID{14: byte(n >> 8), 15: byte(n)} }

var (
	answered    = Result{Latency: time.Millisecond}
	unreachable = Result{Latency: time.Second, Unreachable: true}
	aborted     = Result{NotCounted: true}
)

// fixture is an Admission with a clock of its own.
type fixture struct {
	*Admission
	t     *testing.T
	now   time.Time
	alone bool // each endpoint that enter uses is its company's only one
}

func setup(t *testing.T, o Options) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_000_000, 0)}
	o.Now = func() time.Time { return f.now }
	f.Admission = New(usual(o))
	return f
}

// usual sets the options that are zero as the daemon does.
func usual(o Options) Options {
	o.PerEndpoint = cmp.Or(o.PerEndpoint, 64)
	o.PerHost = cmp.Or(o.PerHost, 256)
	o.BreakerFailures = cmp.Or(o.BreakerFailures, 10)
	o.BreakerPause = cmp.Or(o.BreakerPause, 10*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// latency returns the moving average of an endpoint's attempts; 0: none is known.
func (f *fixture) latency(endpoint uuid.UUID) time.Duration {
	if e := f.endpoints[endpoint]; e != nil {
		return e.latency
	}
	return 0
}

// enter enters one direct delivery. If it waits, its later decision is sent on the channel.
func (f *fixture) enter(company, endpoint int, want Decision) (*Delivery, <-chan Decision) {
	f.t.Helper()
	later := make(chan Decision, 2)
	d := &Delivery{
		Company: id(company), Endpoint: id(endpoint), Alone: f.alone,
		Decided: func(decision Decision) { later <- decision },
	}
	if got := f.Enter(d); got != want {
		f.t.Fatalf("company %d, endpoint %d: decision %d, want %d", company, endpoint, got, want)
	}
	return d, later
}

// hold enters n queued deliveries, which no limit applies to.
func (f *fixture) hold(company, endpoint, n int) (held []*Delivery) {
	f.t.Helper()
	for range n {
		d := &Delivery{Company: id(company), Endpoint: id(endpoint), Queued: true}
		if got := f.Enter(d); got != Start {
			f.t.Fatalf("a queued delivery: decision %d", got)
		}
		held = append(held, d)
	}
	return held
}

// Leave is that of Admission, after Learn.
func (f *fixture) Leave(d *Delivery, r Result) []uuid.UUID {
	f.Learn(d, r)
	return f.Admission.Leave(d, r)
}

// leaveAll ends answered deliveries. It returns the companies that may start more.
func (f *fixture) leaveAll(deliveries []*Delivery) (again []uuid.UUID) {
	for _, d := range deliveries {
		again = append(again, f.Leave(d, answered)...)
	}
	return again
}

// holdOutcomes holds n outcomes of a company. release returns the companies that may start more.
func (f *fixture) holdOutcomes(company, n int) (release func() (again []uuid.UUID)) {
	for range n {
		f.Hold(id(company))
	}
	return func() (again []uuid.UUID) {
		for range n {
			again = append(again, f.Release(id(company))...)
		}
		return again
	}
}

// attempt is one queued attempt with that result.
func (f *fixture) attempt(company, endpoint int, r Result) {
	f.t.Helper()
	f.Leave(f.hold(company, endpoint, 1)[0], r)
}

func (f *fixture) wantLater(later <-chan Decision, want Decision) {
	f.t.Helper()
	select {
	case got := <-later:
		if got != want {
			f.t.Errorf("decided later: %d, want %d", got, want)
		}
	default:
		f.t.Errorf("still waits, want %d", want)
	}
}

func (f *fixture) wantBreakers(closed, open int) {
	f.t.Helper()
	if c := f.Counts(); c.Closed != closed || c.Open != open {
		f.t.Errorf("breakers %+v, want %d closed, %d open", c, closed, open)
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                 string
		places, held, others int
		failing              bool
		want                 int
	}{
		{"all is free", 2048, 0, 0, false, 819},
		{"two fifths of what is free and its own", 2048, 500, 100, false, 279},
		{"as much as is left free", 2048, 1024, 0, false, 0},
		{"more than is left free", 2048, 1500, 0, false, 0},
		{"failing, and there is enough", 2048, 0, 0, true, 819},
		{"not into the last eighth", 2048, 0, 1700, false, 92},
		{"one above the last eighth", 2048, 0, 1791, false, 1},
		{"the last eighth", 2048, 0, 1792, false, 1},
		{"the last eighth, one that holds as much", 2048, 256, 1536, false, 0},
		{"the last eighth, one that holds less", 2048, 255, 1537, false, 1},
		{"failing, one above the last eighth", 2048, 0, 1791, true, 1},
		{"failing, the last eighth", 2048, 0, 1792, true, 0},
		{"the last place", 2048, 0, 2047, false, 1},
		{"no place", 2048, 0, 2048, false, 0},
		{"queued ones beyond the places", 2048, 0, 3000, false, 0},
		{"two places", 2, 0, 0, true, 1},
		{"one of two places", 2, 0, 1, false, 1},
		{"three places", 3, 0, 1, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, Options{Places: c.places})
			if c.failing {
				f.attempt(1, 1, unreachable)
			}
			f.hold(1, 1, c.held)
			f.hold(2, 2, c.others)
			if got := f.Free(id(1)); got != c.want {
				t.Errorf("free %d, want %d", got, c.want)
			}
		})
	}
}

func TestHolding(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	f.hold(1, 1, 8)
	f.hold(2, 2, 40)
	f.attempt(3, 3, unreachable) // holds nothing
	want := map[uuid.UUID]int{id(1): 1, id(2): 0}
	if shares, others := f.Holding(); !maps.Equal(shares, want) || others != 6 {
		t.Errorf("shares %v, others %d, want %v and 6", shares, others, want)
	}
	f.hold(4, 4, 9) // the last eighth
	want = map[uuid.UUID]int{id(1): 0, id(2): 0, id(3): 0, id(4): 0}
	if shares, others := f.Holding(); !maps.Equal(shares, want) || others != 1 {
		t.Errorf("in the last eighth: shares %v, others %d, want %v and 1", shares, others, want)
	}
}

func TestInFlightLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name             string
		places, inFlight int
		failing          bool
		want             int
	}{
		{"never more than 64", 1 << 16, 0, false, 64},
		{"a share of what is free", 2048, 0, false, 62}, // (2048-62)/32 = 62
		{"failing, but there is enough", 2048, 0, true, 62},
		{"just above the last eighth", 2048, 1780, false, 8},
		{"at least two", 64, 40, false, 2},
		{"one in the last eighth", 2048, 1792, false, 1},
		{"one, though all are taken", 2048, 2047, false, 1},
		{"none for one that fails", 2048, 1792, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, Options{Places: c.places})
			if c.failing {
				f.attempt(1, 1, unreachable)
			}
			f.hold(2, 2, c.inFlight)
			for range c.want {
				f.enter(1, 1, Start)
			}
			d := &Delivery{Company: id(1), Endpoint: id(1)}
			if got := f.Enter(d); got == Start {
				t.Errorf("more than %d start", c.want)
			}
		})
	}
}

func TestWaitingDeliveriesStartInTheirOrder(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 2})
	first, _ := f.enter(1, 1, Start)
	f.enter(1, 1, Start)
	var waiting [3]<-chan Decision
	for i := range waiting {
		_, waiting[i] = f.enter(1, 1, Wait)
	}
	f.Leave(first, answered)
	f.wantLater(waiting[0], Start)
	if len(waiting[1])+len(waiting[2]) != 0 {
		t.Error("the others start too")
	}
	if c := f.Counts(); c.InFlight != 2 || c.Held != 4 {
		t.Errorf("counts %+v", c)
	}
}

func TestAHigherLimitStartsSeveralWaitingDeliveries(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	others := f.hold(2, 2, 57)
	first, _ := f.enter(1, 1, Start)
	var waiting []<-chan Decision
	for range 3 {
		_, later := f.enter(1, 1, Wait)
		waiting = append(waiting, later)
	}
	f.leaveAll(others)
	f.enter(1, 1, Wait) // not before those
	f.wantLater(waiting[0], Start)
	f.Leave(first, answered)
	f.wantLater(waiting[1], Start)
	if len(waiting[2]) != 0 {
		t.Error("three start, want two")
	}
}

// Deliveries that would wait long for one endpoint overflow, and leave memory to the company's
// other endpoints.
func TestDeliveriesToASlowEndpointOverflow(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 65, PerEndpoint: 1})
	f.enter(1, 1, Start)                      // the other one has nothing yet
	f.now = f.now.Add(100 * time.Millisecond) // without an answer
	f.enter(1, 1, Wait)                       // 100 ms
	f.enter(1, 1, Wait)                       // 200 ms
	f.enter(1, 1, OverflowShare)              // 300 ms
	f.enter(1, 3, Start)
	f.enter(1, 1, Wait) // 100 ms: those before it have left
}

func TestACompanyWithOneEndpointOverflowsOnlyWhenMemoryIsFull(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64, PerEndpoint: 1})
	f.alone = true
	f.enter(1, 1, Start)
	f.now = f.now.Add(time.Minute) // without an answer
	var waiting []<-chan Decision
	for range 63 {
		_, later := f.enter(1, 1, Wait)
		waiting = append(waiting, later)
	}
	f.enter(1, 1, OverflowShare)
	for _, later := range waiting { // deliveries of the retry set would always start before them
		f.wantLater(later, OverflowShare)
	}
	if c := f.Counts(); c.Held != 1 {
		t.Errorf("counts %+v", c)
	}
}

// Once a turn finds a retry set of the endpoint, waiting deliveries go there too.
func TestWaitingDeliveriesFollowIntoTheQueue(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 1})
	f.enter(1, 1, Start)
	_, later := f.enter(1, 1, Wait)
	for endpoint := range 2 {
		if got := f.Enter(&Delivery{Company: id(1), Endpoint: id(endpoint), Backlogged: true}); got != OverflowQueue {
			t.Errorf("endpoint %d: decision %d", endpoint, got)
		}
	}
	f.wantLater(later, OverflowQueue)
}

// Without an attempt in flight, no event would start a waiting delivery.
func TestNothingWaitsForAFailingEndpointInTheLastEighth(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	f.hold(2, 2, 57)
	first, _ := f.enter(1, 1, Start)
	_, later := f.enter(1, 1, Wait)
	f.Leave(first, unreachable)
	f.wantLater(later, OverflowShare)
	f.enter(1, 1, OverflowShare)
	if c := f.Counts(); c.Held != 57 || c.InFlight != 57 {
		t.Errorf("counts %+v", c)
	}
}

// An open breaker lets no direct delivery through: the retry set probes the endpoint.
func TestTheBreakerOpens(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{})
	for range f.o.BreakerFailures - 1 {
		f.attempt(1, 1, unreachable)
	}
	f.attempt(1, 1, answered) // in a row only
	for range f.o.BreakerFailures {
		f.wantBreakers(1, 0)
		d, _ := f.enter(1, 1, Start)
		f.Leave(d, unreachable)
	}
	f.wantBreakers(0, 1)
	wantOpenUntil := func(want time.Time) {
		t.Helper()
		got := f.Enter(&Delivery{Company: id(1), Endpoint: id(1)})
		if at := f.endpoints[id(1)].openUntil; got != OverflowBreaker || !at.Equal(want) {
			t.Errorf("decision %d, open until %v, want %v", got, at, want)
		}
	}
	until := f.now.Add(f.o.BreakerPause)
	wantOpenUntil(until)
	f.now = until.Add(time.Hour)
	wantOpenUntil(until)
	f.attempt(1, 1, aborted) // says nothing
	wantOpenUntil(until)
	f.attempt(1, 1, unreachable)
	wantOpenUntil(f.now.Add(f.o.BreakerPause))
	f.wantBreakers(0, 1)
	f.attempt(1, 1, answered)
	f.wantBreakers(1, 0)
	f.enter(1, 1, Start)
}

// wantMayStart checks how many attempts of an idle endpoint may start.
func (f *fixture) wantMayStart(endpoint, want int) {
	f.t.Helper()
	if got, _ := f.MayStart(id(1), id(endpoint)); got != want {
		f.t.Fatalf("%d may start, want %d", got, want)
	}
}

// After an outage the load doubles with each round of answers.
func TestTheLoadGrowsAfterAnOutage(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 8, BreakerFailures: 2})
	round := func(n int) { f.leaveAll(f.hold(1, 1, n)) }
	f.wantMayStart(1, 8)
	f.attempt(1, 1, unreachable)
	f.attempt(1, 1, answered)
	f.wantMayStart(1, 8) // the breaker was not open
	f.attempt(1, 1, unreachable)
	f.attempt(1, 1, unreachable)
	f.now = f.now.Add(f.o.BreakerPause)
	f.wantMayStart(1, 1)
	round(1)
	if n := f.Counts(); n.Slowed != 1 || n.Closed != 1 {
		t.Errorf("while the load grows: %+v", n)
	}
	for n := 1; n < 8; n *= 2 {
		f.wantMayStart(1, n)
		round(n)
	}
	f.wantMayStart(1, 8)
	if ramp, n := f.endpoints[id(1)].ramp, f.Counts().Slowed; ramp != 0 || n != 0 {
		t.Errorf("the load is limited to %d, %d endpoints are slowed", ramp, n)
	}
	f.wantMayStart(2, 8) // another endpoint
}

// An outage that a former owner has seen goes on, also of an endpoint whose URL was changed before; its load grows as after
// one that this replica has seen.
func TestTheLoadGrowsAfterAnOutageOfAFormerOwner(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 8, BreakerFailures: 2})
	attempt := func(endpoint, url int, r Result) {
		t.Helper()
		d := &Delivery{Company: id(1), Endpoint: id(endpoint), URL: url, Queued: true}
		if got := f.Enter(d); got != Start {
			t.Fatalf("decision %d", got)
		}
		f.Leave(d, r)
	}
	attempt(2, 1, answered) // before it was another owner's
	for endpoint := 1; endpoint <= 2; endpoint++ {
		f.Learned(id(1), id(endpoint), 2, time.Second)
		f.now = f.now.Add(time.Second)
		attempt(endpoint, 3, unreachable)
		if n := f.Counts(); n.Open != 1 {
			t.Errorf("after a probe that failed: %+v", n)
		}
		f.now = f.now.Add(f.o.BreakerPause)
		attempt(endpoint, 3, answered)
		f.wantMayStart(endpoint, 1)
	}
}

// A waiting delivery starts when the load has grown.
func TestWaitingDeliveriesStartAsTheLoadGrows(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 8, BreakerFailures: 1})
	f.alone = true
	f.attempt(1, 1, unreachable)
	f.now = f.now.Add(f.o.BreakerPause)
	f.attempt(1, 1, answered)
	first, _ := f.enter(1, 1, Start)
	_, second := f.enter(1, 1, Wait)
	_, third := f.enter(1, 1, Wait)
	_, fourth := f.enter(1, 1, Wait)
	f.Leave(first, answered)
	f.wantLater(second, Start)
	f.wantLater(third, Start)
	if len(fourth) > 0 {
		t.Error("three start")
	}
}

// A 429 halves the load, once for the attempts that were in flight together.
func TestA429HalvesTheLoad(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 8})
	tooMany := Result{Latency: 100 * time.Millisecond, TooMany: true}
	round := func(n int, r Result) {
		held := f.hold(1, 1, n)
		f.now = f.now.Add(r.Latency)
		for _, d := range held {
			f.Leave(d, r)
		}
	}
	for _, want := range []int{4, 2, 1, 1} {
		round(8, tooMany)
		f.wantMayStart(1, want)
	}
	round(1, answered)
	f.wantMayStart(1, 2)
	round(2, unreachable)
	f.wantMayStart(1, 2)
	d := f.hold(1, 1, 1)[0]
	f.Leave(d, Result{NotCounted: true, TooMany: true})
	f.wantMayStart(1, 2)
}

// A new URL begins without what was learned of the former one, and attempts to that one that end late change nothing.
func TestFailuresOfAFormerURLDoNotCount(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{BreakerFailures: 2})
	to := func(url int, want Decision) *Delivery {
		d := &Delivery{Company: id(1), Endpoint: id(1), URL: url}
		if got := f.Enter(d); got != want {
			t.Fatalf("URL %d: decision %d, want %d", url, got, want)
		}
		return d
	}
	end := func(d *Delivery, r Result, news bool) {
		if _, _, got := f.Learn(d, r); got != news {
			t.Errorf("URL %d: news %t, want %t", d.URL, got, news)
		}
		f.Leave(d, r)
	}
	late := []*Delivery{to(0, Start), to(0, Start), to(0, Start), to(0, Start)}
	end(late[0], unreachable, true)
	end(late[1], unreachable, true)
	to(0, OverflowBreaker)
	moved := to(1, Start)
	end(late[2], unreachable, false)
	end(late[3], Result{Latency: time.Millisecond, Pause: time.Minute}, false)
	end(moved, answered, true) // the failures of the former URL are stored
	end(to(1, Start), answered, false)
	if counts := f.Counts(); counts.Open != 0 || counts.InFlight != 0 {
		t.Errorf("counts %+v", counts)
	}
}

// Until the pause of a receiver ends, deliveries that wait in memory and new ones overflow.
func TestDeliveriesOverflowDuringAPause(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 2})
	d, _ := f.enter(1, 1, Start)
	f.enter(1, 1, Start)
	_, later := f.enter(1, 1, Wait)
	f.Leave(d, Result{Latency: time.Millisecond, Pause: time.Minute})
	f.wantLater(later, OverflowPause)
	ends := f.now.Add(time.Minute)
	got := f.Enter(&Delivery{Company: id(1), Endpoint: id(1)})
	if at := f.endpoints[id(1)].pausedUntil; got != OverflowPause || !at.Equal(ends) {
		t.Errorf("decision %d, the pause ends at %v", got, at)
	}
	f.enter(1, 2, Start)
	f.now = ends
	f.enter(1, 1, Start)
}

func TestWaitingDeliveriesOverflowWhenTheBreakerOpens(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 1, BreakerFailures: 1})
	d, _ := f.enter(1, 1, Start)
	_, first := f.enter(1, 1, Wait)
	_, second := f.enter(1, 1, Wait)
	f.Leave(d, unreachable)
	f.wantLater(first, OverflowBreaker)
	f.wantLater(second, OverflowBreaker)
	f.enter(1, 1, OverflowBreaker)
	if c := f.Counts(); c.Held != 0 {
		t.Errorf("counts %+v", c)
	}
}

func TestAbortedAttemptIsNotCounted(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	f.attempt(1, 1, unreachable)
	f.attempt(1, 1, Result{NotCounted: true, Latency: time.Hour})
	if got := f.latency(id(1)); got != time.Second {
		t.Errorf("latency %v", got)
	}
	f.hold(2, 2, 57)
	f.enter(1, 1, OverflowShare) // failing
	if got := f.Free(id(1)); got != 0 {
		t.Errorf("the company may take %d of the last eighth", got)
	}
}

func TestLatency(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{})
	if got := f.latency(id(1)); got != 0 {
		t.Errorf("of an unknown endpoint: %v", got)
	}
	f.attempt(1, 1, Result{Latency: 80 * time.Millisecond})
	f.attempt(1, 1, Result{Latency: 160 * time.Millisecond})
	if got := f.latency(id(1)); got != 90*time.Millisecond {
		t.Errorf("latency %v, want 90ms", got)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{PerEndpoint: 1})
	var started []*Delivery
	var waiting []<-chan Decision
	for n := range 10 {
		d, _ := f.enter(n, n, Start)
		started = append(started, d)
		for range 2 {
			_, later := f.enter(n, n, Wait)
			waiting = append(waiting, later)
		}
	}
	f.Stop()
	f.enter(1, 1, Stopped)
	if got := f.Enter(&Delivery{Company: id(1), Endpoint: id(1), Queued: true}); got != Stopped {
		t.Errorf("a queued delivery: decision %d", got)
	}
	if f.Skipped(id(1)) || f.Free(id(1)) != 0 {
		t.Error("a company may start")
	}
	if again := f.leaveAll(started); len(again) != 0 {
		t.Errorf("may start more: %v", again)
	}
	for _, later := range waiting {
		if len(later) != 0 {
			t.Error("a waiting delivery is decided")
		}
	}
	if c := f.Counts(); c.InFlight != 0 || c.Closed != 10 {
		t.Errorf("counts %+v", c)
	}
}

func TestASkippedCompanyIsNamedOnce(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 2048})
	if !f.Skipped(id(1)) {
		t.Error("a company that holds nothing has to wait")
	}
	held := f.hold(1, 1, 1024)
	for range 2 {
		if f.Skipped(id(1)) {
			t.Error("a company that holds its share may start")
		}
	}
	left := 0
	for _, d := range held {
		left++
		again := f.Leave(d, answered)
		if len(again) == 0 {
			continue
		}
		if left != 230 || !slices.Equal(again, []uuid.UUID{id(1)}) { // 2048*2/5 - 794 = 25
			t.Errorf("after %d left: %v may start", left, again)
		}
	}
}

// A company that was skipped waits for a Leave: when memory is empty, no further Leave would name it.
func TestTheLastLeaveNamesAllSkippedCompanies(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 8})
	held := f.hold(1, 1, 8)
	for n := 1; n <= 100; n++ {
		if f.Skipped(id(n)) {
			t.Fatalf("company %d may start", n)
		}
	}
	var again []uuid.UUID
	for i, d := range held {
		named := f.Leave(d, answered)
		if i < len(held)-1 && len(named) > 1 {
			t.Errorf("%d companies at once", len(named))
		}
		again = append(again, named...)
	}
	slices.SortFunc(again, func(a, b uuid.UUID) int { return int(a[15]) - int(b[15]) })
	if len(again) != 100 || len(slices.Compact(again)) != 100 {
		t.Errorf("%d companies may start, want 100", len(again))
	}
	f.wantForgotten(1)
}

// Outcomes hold places until they are recorded. Then their company may start more.
func TestOutcomesHoldPlaces(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	release := f.holdOutcomes(1, 40)
	if c := f.Counts(); c.Held != 40 || c.InFlight != 0 {
		t.Errorf("counts %+v, want 40 outcomes", c)
	}
	if f.Skipped(id(1)) {
		t.Error("a company may start beside 40 outcomes")
	}
	if f.Free(id(2)) == 0 {
		t.Error("another company may start nothing")
	}
	if again := release(); !slices.Equal(again, []uuid.UUID{id(1)}) {
		t.Errorf("may start more: %v", again)
	}
	f.wantForgotten(0)
}

// However many outcomes a company has, others may use the last eighth.
func TestOutcomesLeaveTheLastEighth(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	release := f.holdOutcomes(1, 1000)
	if f.Free(id(2)) != 1 || f.Free(id(1)) != 0 {
		t.Errorf("%d may be started, of the company with the outcomes %d", f.Free(id(2)), f.Free(id(1)))
	}
	release()
	if c := f.Counts(); c.Held != 0 {
		t.Errorf("counts %+v, want none", c)
	}
	f.wantForgotten(0)
}

// A company that was skipped that still holds its share does not block those behind it.
func TestSkippedCompaniesAreCheckedInTurn(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64})
	f.hold(1, 1, 40)
	held := f.hold(2, 2, 24)
	f.Skipped(id(1))
	f.Skipped(id(3))
	if again := f.leaveAll(held); !slices.Equal(again, []uuid.UUID{id(3)}) {
		t.Errorf("may start more: %v", again)
	}
}

// wantForgotten checks that no company, and at most so many endpoints, are kept.
func (f *fixture) wantForgotten(endpoints int) {
	f.t.Helper()
	if len(f.companies) != 0 || len(f.holding)+f.skipped.Len() != 0 {
		f.t.Errorf("%d companies remembered, %d hold, %d skipped", len(f.companies), len(f.holding), f.skipped.Len())
	}
	if len(f.endpoints) > endpoints {
		f.t.Errorf("%d endpoints remembered, want %d", len(f.endpoints), endpoints)
	}
}

func TestIdleCompaniesAndEndpointsAreForgotten(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{MaxEndpoints: 3})
	for n := range 100 {
		f.attempt(n, n, answered)
	}
	f.wantForgotten(3)
	f.wantBreakers(3, 0)

	f.enter(2, 2, Start)
	kept := f.hold(1, 1, defaultPlaces)
	for n := 10; n < 100; n++ { // each has something to remember
		f.attempt(n, n, unreachable)
		f.Skipped(id(n))
	}
	if len(f.companies) != 5 || len(f.holding) != 2 || f.skipped.Len() != 3 {
		t.Errorf("%d companies remembered, %d hold, %d skipped", len(f.companies), len(f.holding), f.skipped.Len())
	}
	if len(f.endpoints) != 3 || f.endpoints[id(1)] == nil || f.endpoints[id(2)] == nil {
		t.Errorf("endpoints in use are forgotten: %d remembered", len(f.endpoints))
	}
	f.leaveAll(kept)
}

func TestMoreEndpointsInUseThanAreRemembered(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{MaxEndpoints: 1})
	var started []*Delivery
	for n := range 50 {
		started = append(started, f.hold(n, n, 1)...)
	}
	f.leaveAll(started)
	f.attempt(99, 99, answered)
	f.wantForgotten(1)
	f.wantBreakers(1, 0)
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	a := New(usual(Options{Places: 64, MaxEndpoints: 8, BreakerFailures: 2, BreakerPause: 1}))
	var attempts sync.WaitGroup
	attempt := func(d *Delivery) {
		attempts.Go(func() {
			r := Result{Unreachable: rand.N(3) == 0, NotCounted: rand.N(9) == 0}
			a.Learn(d, r)
			for _, company := range a.Leave(d, r) {
				a.Free(company)
			}
		})
	}
	var turns sync.WaitGroup
	for range 8 {
		turns.Go(func() {
			for range 2000 {
				n := rand.N(20)
				d := &Delivery{Company: id(n % 5), Endpoint: id(n), Queued: rand.N(5) == 0}
				d.Decided = func(decision Decision) {
					if decision == Start {
						attempt(d)
					}
				}
				if decision := a.Enter(d); decision == Start {
					attempt(d)
				}
				a.Skipped(d.Company)
				a.Holding()
			}
		})
	}
	turns.Wait()
	a.Stop()
	attempts.Wait()
	if c := a.Counts(); c.InFlight != 0 {
		t.Errorf("left behind: %+v", c)
	}
}

func BenchmarkEnterLeave(b *testing.B) {
	a := New(usual(Options{}))
	d := &Delivery{Company: id(1), Endpoint: id(1)}
	for b.Loop() {
		if got := a.Enter(d); got != Start {
			b.Fatalf("decision %d", got)
		}
		a.Learn(d, answered)
		a.Leave(d, answered)
	}
}

// Of 1,000 companies with 10 endpoints each, 1,000 deliveries are in memory.
func BenchmarkEnterLeaveMany(b *testing.B) {
	a := New(usual(Options{}))
	deliveries := make([]*Delivery, 10_000)
	for n := range deliveries {
		deliveries[n] = &Delivery{Company: id(n % 1000), Endpoint: id(n)}
	}
	n := 0
	for ; n < 1000; n++ {
		a.Enter(deliveries[n])
	}
	for b.Loop() {
		if got := a.Enter(deliveries[n%10_000]); got != Start {
			b.Fatalf("decision %d", got)
		}
		a.Learn(deliveries[(n-1000)%10_000], answered)
		a.Leave(deliveries[(n-1000)%10_000], answered)
		n++
	}
}

// A company starts nothing while its events are matched, and is named when all are.
func TestCompanyWhoseEventsAreMatchedStartsNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 800})
	f.BeginMatch(id(1))
	f.BeginMatch(id(1))
	if f.Free(id(1)) != 0 || f.Skipped(id(1)) || f.Free(id(2)) == 0 {
		t.Errorf("%d free for it, %d for another company", f.Free(id(1)), f.Free(id(2)))
	}
	if again := f.EndMatch(id(1)); len(again) != 0 || f.Free(id(1)) != 0 {
		t.Errorf("one event is left: %v may start, %d free", again, f.Free(id(1)))
	}
	if again := f.EndMatch(id(1)); !slices.Equal(again, []uuid.UUID{id(1)}) || f.Counts().Held != 0 {
		t.Errorf("all are matched: %v may start, %+v", again, f.Counts())
	}
}

// While all endpoints of a company are busy, deliveries to a slow one wait in memory. Once another endpoint could start a
// delivery and the company may start no more, they overflow.
func TestWaitingDeliveriesOverflowForAnotherEndpoint(t *testing.T) {
	t.Parallel()
	both := slices.Values([]uuid.UUID{id(1), id(2)})
	for name, frees := range map[string]func(*fixture, *Delivery){
		"an attempt ends while the company is skipped": func(f *fixture, d *Delivery) { f.Skipped(id(1)); f.Leave(d, answered) },
		"the company is skipped after an attempt":      func(f *fixture, d *Delivery) { f.Leave(d, answered); f.Skipped(id(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, Options{Places: 16, PerEndpoint: 2})
			f.enter(1, 1, Start)
			f.enter(1, 1, Start)
			one, _ := f.enter(1, 2, Start)
			if f.Busy(id(1), both) {
				t.Error("an endpoint with a place is busy")
			}
			other, _ := f.enter(1, 2, Start)
			if !f.Busy(id(1), both) {
				t.Error("endpoints without places are not busy")
			}
			f.now = f.now.Add(time.Minute) // nothing has ended since then
			f.alone = true
			_, later := f.enter(1, 1, Wait)
			if f.Skipped(id(1)); len(later) > 0 {
				t.Error("it waits no more, and all are busy")
			}
			f.forgetSkipped(f.companies[id(1)])
			frees(f, one)
			f.wantLater(later, OverflowShare)
			f.Leave(other, answered)
		})
	}
}

// An endpoint that does not answer takes the memory of its company until time shows that it is slow. Then its deliveries
// overflow, and leave the memory to the company's other endpoints.
func TestWaitingDeliveriesOfASilentEndpointOverflow(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 16, PerEndpoint: 2})
	f.enter(1, 1, Start)
	f.enter(1, 1, Start)
	_, later := f.enter(1, 1, Wait)
	for f.Free(id(1)) > 0 {
		f.enter(1, 1, Wait)
	}
	f.Busy(id(1), slices.Values([]uuid.UUID{id(1), id(2)}))
	if f.Skipped(id(1)); len(later) > 0 {
		t.Error("it waits no more, and nothing is slow yet")
	}
	f.now = f.now.Add(time.Second)
	if !f.Busy(id(1), slices.Values([]uuid.UUID{id(1)})) {
		t.Error("the other endpoint is gone, and it delays nothing")
	}
	if f.Skipped(id(1)); len(later) > 0 {
		t.Error("it waits no more, and delays nothing")
	}
	f.Busy(id(1), slices.Values([]uuid.UUID{id(1), id(2)}))
	f.Skipped(id(1))
	f.wantLater(later, OverflowShare)
}

// For a while, nothing of a company waits in memory for an endpoint, and what waited leaves it.
func TestSpill(t *testing.T) {
	t.Parallel()
	f := setup(t, Options{Places: 64, PerEndpoint: 2})
	f.alone = true
	f.Busy(id(1), slices.Values([]uuid.UUID{id(9)}))
	f.enter(1, 9, Start)
	first, _ := f.enter(1, 9, Start)
	_, waiting := f.enter(1, 9, Wait)
	f.Spill(id(1))
	f.Spill(id(2))
	if got := <-waiting; got != OverflowShare {
		t.Errorf("what waited: %d", got)
	}
	f.enter(1, 9, OverflowShare)
	f.Leave(first, answered)
	f.enter(1, 9, Start)
	f.now = f.now.Add(spillTime)
	f.enter(1, 9, Wait)
}
