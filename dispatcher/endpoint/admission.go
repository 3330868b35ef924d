// Package endpoint keeps one replica's state of receivers: in-flight limits, latencies and breakers. It
// decides which deliveries the replica takes into its memory, when each may start, and which are
// appended to a retry set instead. It uses neither Redis nor the network.
//
// A company that holds more places than are left free gets no more (dynamic
// thresholds, Choudhury and Hahne 1998). The last eighth is assigned one by one, and not to
// companies and endpoints whose receiver was unreachable at the last attempt.
package endpoint

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	defaultPlaces       = 2048
	minPlaces           = 2 // one of them is the last eighth
	minPerEndpoint      = 2
	defaultMaxEndpoints = 1 << 16

	// maxWait bounds the wait in memory, unless the company has no other endpoint.
	maxWait = 250 * time.Millisecond

	freePerAttempt = 32 // an endpoint may have one attempt in flight for so many free places
	reservedShare  = 8  // the last 1/8 of all places is assigned one by one
	minAgain       = 25 // a company that was skipped starts more when it may start this many
)

// Options configure an Admission. All but Places and MaxEndpoints are required.
type Options struct {
	Places          int           // deliveries in memory: in flight, waiting or to be recorded; default 2048, at least 2
	PerEndpoint     int           // in flight to one endpoint
	PerHost         int           // of one company in flight to one host
	MaxEndpoints    int           // idle endpoints kept, and as many companies; default 65,536
	BreakerFailures int           // unreachable attempts in a row that open the breaker
	BreakerPause    time.Duration // until the retry set probes the endpoint
	Now             func() time.Time
}

// Delivery is one delivery that asks for a place in memory. The caller passes
// the same pointer to Enter and to Leave, and does not change it in between.
type Delivery struct {
	Company  uuid.UUID
	Endpoint uuid.UUID // of one company only
	Host     string    // host and port of the endpoint; "": unknown, without a limit
	URL      int       // how often the endpoint's URL was changed before
	// Alone: the company has no other endpoint that this one could delay, because it has none or none could start a
	// delivery (Busy). Its deliveries wait in memory, and its events in the log: both cost less than a retry set.
	Alone bool
	// Queued: the delivery has waited. MayStart has enforced the endpoint's limits, so it starts as soon as its
	// host has a place.
	Queued bool
	// Backlogged: the endpoint has deliveries that wait, or all its deliveries must wait first.
	Backlogged bool
	// Decided is called once for a delivery that waits, with the final decision (never Wait). The caller is Leave, Skipped,
	// Spill or Enter, also that of this delivery before it returns Wait. None holds a lock then. Decided is not called after Stop.
	Decided func(Decision)
}

// Decision is what to do with a delivery. Only deliveries that start or wait hold a place in
// memory. Only those that started are passed to Leave.
type Decision int

// The decisions.
const (
	Start           Decision = iota // the attempt starts now
	Wait                            // Decided is called later
	OverflowQueue                   // append to the retry set: the queue is not empty
	OverflowBreaker                 // append to the retry set: the breaker is open
	OverflowPause                   // append to the retry set: the receiver asked for a pause
	OverflowHost                    // append to the retry set: the wait for a place at the host would be long
	OverflowShare                   // append to the retry set: no memory, or the wait would delay the company's other endpoints
	Stopped                         // the replica is shutting down
)

// Result is the result of one attempt, as far as it concerns its endpoint.
type Result struct {
	Latency     time.Duration
	Unreachable bool // timed out, or no answer came from the endpoint itself
	NotCounted  bool // aborted or locked: the result says nothing about the endpoint
	TooMany     bool // answered 429
	// Pause is the pause that the receiver asked for; 0: none.
	Pause time.Duration
}

// Counts has the numbers of known endpoints by state of their breaker, and of deliveries in memory.
type Counts struct {
	Closed, Open int // endpoints
	Slowed       int // endpoints: those of Closed whose load is limited after an outage or a 429
	InFlight     int // deliveries
	Held         int // those in flight, those that wait, and what Hold and BeginMatch note
}

// Admission shares a replica's memory and attempts among companies and
// endpoints. No call blocks. Each but Holding takes constant time for each delivery that it decides on
// and each company that it returns. Safe for concurrent use.
type Admission struct {
	o Options

	mu        sync.Mutex // guards all below
	endpoints map[uuid.UUID]*endpoint
	open      int // endpoints with an open breaker
	slowed    int // endpoints with a limited load; none with an open breaker
	companies map[uuid.UUID]*company
	holding   map[uuid.UUID]*company // those that hold something
	hosts     map[hostKey]*host      // where something is in flight
	skipped   list.List              // *company: those that wait until they may start more
	held      int                    // places that are taken
	inFlight  int
	extra     int // outcomes of Hold without a place
	stopped   bool
}

// New returns an Admission with all places free.
func New(o Options) *Admission {
	o.Places = max(cmp.Or(o.Places, defaultPlaces), minPlaces)
	o.MaxEndpoints = cmp.Or(o.MaxEndpoints, defaultMaxEndpoints)
	return &Admission{
		o:         o,
		endpoints: map[uuid.UUID]*endpoint{},
		companies: map[uuid.UUID]*company{},
		holding:   map[uuid.UUID]*company{},
		hosts:     map[hostKey]*host{},
	}
}

// Enter asks for a place for one delivery.
func (a *Admission) Enter(d *Delivery) Decision {
	decision, others := a.enter(d)
	others.call()
	return decision
}

func (a *Admission) enter(d *Delivery) (decision Decision, decidedNow decided) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped {
		return Stopped, decided{}
	}
	c, e := a.company(d.Company), a.endpoint(d.Endpoint)
	e.host = keyOf(d)
	a.renew(e, d.URL)
	decision = a.decide(d, c, e)
	switch decision {
	case Start:
		a.hold(c)
		a.start(d, e)
	case Wait:
		a.hold(c)
		if d.Queued {
			h := a.hosts[keyOf(d)]
			h.waiting = append(h.waiting, waiter{queued: d})
			break
		}
		e.waiting = append(e.waiting, d)
		if e.inFlight < a.limit(e) { // the limit has grown, or the host is full
			decidedNow = a.next(c, e)
		}
	default: // the waiting deliveries enter the queue first: in memory, those from the queue would overtake them
		decidedNow = a.overflowAll(c, e, decided{decision: decision})
	}
	a.updateHolding(c)
	return decision, decidedNow
}

// decide decides on a new delivery.
func (a *Admission) decide(d *Delivery, c *company, e *endpoint) Decision {
	free, full := a.o.Places-a.held, a.hostFull(d)
	switch {
	case d.Queued && full:
		return Wait
	case d.Queued:
		return Start
	case d.Backlogged:
		return OverflowQueue
	case a.isOpen(e):
		return OverflowBreaker
	case a.o.Now().Before(e.pausedUntil):
		return OverflowPause
	case free <= 0:
		return OverflowShare
	case full && !d.Alone && a.hostBusy(c, d):
		return OverflowHost
	case len(e.waiting) == 0 && e.inFlight < a.limit(e) && !full:
		return Start
	case e.inFlight == 0 && (a.limit(e) == 0 || !full), // only the end of an attempt starts a waiting delivery
		!d.Alone && a.expectedWait(e) > maxWait,
		a.o.Now().Before(c.spills):
		return OverflowShare
	default:
		return Wait
	}
}

// expectedWait estimates how long one more delivery to the endpoint would wait; 0 while an attempt may
// start. The time since the last attempt ended replaces the latency if it is longer.
func (a *Admission) expectedWait(e *endpoint) time.Duration {
	limit := a.limit(e)
	if e.inFlight < limit || e.inFlight == 0 {
		return 0
	}
	latency := max(e.latency, a.o.Now().Sub(e.progressAt))
	return time.Duration(len(e.waiting)+1) * latency / time.Duration(max(limit, 1))
}

// limit is how many attempts the endpoint may have in flight now.
func (a *Admission) limit(e *endpoint) int {
	free := a.o.Places - a.inFlight
	switch {
	case free > a.reserve():
		return min(max(free/freePerAttempt, minPerEndpoint), cmp.Or(e.ramp, a.o.PerEndpoint))
	case e.failing:
		return 0
	default:
		return 1
	}
}

// reserve is the last eighth of all places.
func (a *Admission) reserve() int { return (a.o.Places + reservedShare - 1) / reservedShare }

func (a *Admission) hold(c *company) {
	c.held++
	a.held++
}

func (a *Admission) release(c *company) {
	c.held--
	a.held--
}

// start notes an attempt.
func (a *Admission) start(d *Delivery, e *endpoint) {
	if e.inFlight == 0 {
		e.progressAt = a.o.Now()
	}
	e.inFlight++
	a.inFlight++
	a.startAtHost(d)
}

// Leave frees the place of a started attempt, after Learn. Call it once. It calls
// Decided for the deliveries that start now, or that overflow because the breaker opened. The
// returned companies were skipped and may start more now.
func (a *Admission) Leave(d *Delivery, r Result) []uuid.UUID {
	decided, again := a.leave(d, r)
	for _, w := range decided {
		w.call()
	}
	return again
}

func (a *Admission) leave(d *Delivery, r Result) ([]decided, []uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, e := a.companies[d.Company], a.endpoints[d.Endpoint]
	e.inFlight--
	a.inFlight--
	a.release(c)
	a.leaveHost(d, r)
	if !r.NotCounted {
		c.failing = r.Unreachable
	}
	next := append([]decided{a.next(c, e)}, a.serveHost(d)...)
	if c.skipped != nil && !a.busy(e) {
		next = append(next, a.overflowSlow(c)...)
	}
	a.updateHolding(c)
	return next, a.nextAgain()
}

// Hold notes an outcome that is to be recorded. A company with many outcomes may start less. An
// outcome takes a place, except of the last eighth: that is left to other companies.
func (a *Admission) Hold(company uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holdOutcome(a.company(company))
}

// BeginMatch notes an event that is to be matched. The event takes a place like an outcome of Hold.
// The company may start nothing until all its events are matched: only then the number of places
// that their deliveries take is known. A later turn reads the company's subscribers again.
func (a *Admission) BeginMatch(company uuid.UUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.company(company)
	c.matching++
	a.holdOutcome(c)
}

// EndMatch notes that an event was matched. Call it once for each BeginMatch. The returned
// companies were skipped and may start more now.
func (a *Admission) EndMatch(company uuid.UUID) []uuid.UUID {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.companies[company]
	c.matching--
	return a.releaseOutcome(c)
}

func (a *Admission) holdOutcome(c *company) {
	if a.o.Places-a.held > a.reserve() {
		a.hold(c)
	} else {
		c.held++
		c.extra++
		a.extra++
	}
	a.updateHolding(c)
}

// Release notes that an outcome was recorded. Call it once for each Hold. The returned companies
// were skipped and may start more now.
func (a *Admission) Release(company uuid.UUID) []uuid.UUID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.releaseOutcome(a.companies[company])
}

func (a *Admission) releaseOutcome(c *company) []uuid.UUID {
	if c.extra > 0 {
		c.held--
		c.extra--
		a.extra--
	} else {
		a.release(c)
	}
	a.updateHolding(c)
	return a.nextAgain()
}

// decided has deliveries that waited, and the decision on them.
type decided struct {
	deliveries []*Delivery
	decision   Decision
}

func (w decided) call() {
	for _, d := range w.deliveries {
		d.Decided(w.decision)
	}
}

// next takes the waiting deliveries that start now. The others wait for an attempt of the endpoint to end, or for
// its turn at a full host; when it has neither, all overflow.
func (a *Admission) next(c *company, e *endpoint) decided {
	if len(e.waiting) == 0 || a.stopped {
		return decided{}
	}
	switch {
	case a.isOpen(e):
		return a.overflowAll(c, e, decided{decision: OverflowBreaker})
	case a.o.Now().Before(e.pausedUntil):
		return a.overflowAll(c, e, decided{decision: OverflowPause})
	}
	n := 0
	for n < len(e.waiting) && e.inFlight < a.limit(e) && !a.hostFull(e.waiting[n]) {
		a.start(e.waiting[n], e)
		n++
	}
	started := takeWaiting(e, n)
	switch {
	case len(e.waiting) == 0:
	case e.inFlight < a.limit(e): // the host is full
		a.waitAtHost(e)
	case e.inFlight == 0:
		return a.overflowAll(c, e, decided{decision: OverflowShare})
	}
	return started
}

// takeWaiting removes the first n deliveries that wait for the endpoint, which have started.
func takeWaiting(e *endpoint, n int) decided {
	started := slices.Clone(e.waiting[:n])
	clear(e.waiting[:n])
	e.waiting = e.waiting[n:]
	return decided{deliveries: started, decision: Start}
}

// overflowAll removes all deliveries that wait for the endpoint from memory.
func (a *Admission) overflowAll(c *company, e *endpoint, w decided) decided {
	w.deliveries, e.waiting = e.waiting, nil
	for range w.deliveries {
		a.release(c)
	}
	return w
}

// Stop ends all starts. Leave still works. Waiting deliveries are not decided.
func (a *Admission) Stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
}

// Counts returns the numbers for metrics.
func (a *Admission) Counts() Counts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Counts{
		Closed: len(a.endpoints) - a.open, Open: a.open, Slowed: a.slowed,
		InFlight: a.inFlight, Held: a.held + a.extra,
	}
}
