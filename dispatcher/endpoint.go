package dispatcher

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/sony/gobreaker/v2"
	"golang.org/x/sync/semaphore"

	"spendhook/dispatcher/webhook"
)

const (
	defaultConcurrency = 2048
	maxPerEndpoint     = 64
	minPerEndpoint     = 2
	maxEndpoints       = 1 << 16

	freePerSlot   = 32 // an endpoint may hold one slot for so many that are free
	reservedShare = 8  // the last 1/8 of all slots is given out one by one

	breakerFailures = 10               // in a row, that open the breaker
	breakerPause    = 10 * time.Second // until the next probe
	minDeferral     = time.Second
	maxDeferral     = 5 * time.Minute
	minStepOpen     = 100 * time.Millisecond // between returns to an open breaker
	ewmaWeight      = 8                      // the newest latency counts for one in so many
)

// endpointsOptions configures the isolation; zero values mean the defaults.
type endpointsOptions struct {
	Concurrency    int              // attempts in flight in all; 2048
	PerEndpoint    int              // at most so many to one endpoint; 64
	MaxEndpoints   int              // remembered; idle ones are forgotten beyond; 65,536
	BreakerPause   time.Duration    // 10 s
	BreakerTripsAt uint32           // unreachable in a row; 10
	Now            func() time.Time // nil: time.Now. The breaker itself always uses time.Now
}

// endpoints keeps one receiver's trouble from the others. Each subscriber has
// a cap on its attempts in flight that shrinks as slots run short, being a
// share of what is free (dynamic thresholds, Choudhury & Hahne 1998). Of the
// last eighth each may hold one, and none who was out of reach at the last
// attempt: so a few hundred receivers may begin to hang at the same moment,
// and any number may go on hanging, before others run out of slots. Safe for
// concurrent use.
type endpoints struct {
	endpointsOptions
	slots *semaphore.Weighted

	mu    sync.Mutex // guards all below, and every call of a breaker
	byID  map[uuid.UUID]*endpoint
	lru   *list.List // of *endpoint, the latest used first
	used  int        // slots granted, over all endpoints
	state map[string]int
}

// endpoint is what is known of one receiver.
type endpoint struct {
	id       uuid.UUID
	place    *list.Element // in endpoints.lru
	breaker  *gobreaker.TwoStepCircuitBreaker[struct{}]
	state    string    // of the breaker, as last seen
	probeAt  time.Time // when an open breaker lets the next attempt through
	inFlight int
	waiting  list.List // of *waiter, first come first served
	failing  bool      // out of reach at the last attempt
	// saturated: somebody waited in vain and no slot has come free since.
	saturated bool
	latency   time.Duration // moving average of attempts; 0: none yet
	nextSlot  time.Time     // a virtual clock: when the last one deferred returns
}

// grant is a slot, or the time to come back at.
type grant struct {
	done  func(error) // reports to the breaker; nil: refused
	after time.Duration
}

type waiter struct{ ready chan grant }

func newEndpoints(o endpointsOptions) *endpoints {
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.PerEndpoint <= 0 {
		o.PerEndpoint = maxPerEndpoint
	}
	if o.MaxEndpoints <= 0 {
		o.MaxEndpoints = maxEndpoints
	}
	if o.BreakerPause <= 0 {
		o.BreakerPause = breakerPause
	}
	if o.BreakerTripsAt == 0 {
		o.BreakerTripsAt = breakerFailures
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the one default
	}
	return &endpoints{
		endpointsOptions: o,
		slots:            semaphore.NewWeighted(int64(o.Concurrency)),
		byID:             map[uuid.UUID]*endpoint{},
		lru:              list.New(),
		state:            map[string]int{stateClosed: 0, stateHalfOpen: 0, stateOpen: 0},
	}
}

// acquire asks for a slot for one attempt to a subscriber. At the endpoint's
// cap it waits its turn for up to maxWait, if a slot is likely within that.
// With ok the caller must call release once, with the attempt's result. Else
// after says when to try again, no attempt being counted; it is 0 only when
// ctx ended. It blocks beyond maxWait only while all slots of the process are
// in use: that holds back intake.
func (s *endpoints) acquire(ctx context.Context, id uuid.UUID, maxWait time.Duration) (release func(webhook.Result), after time.Duration, ok bool) {
	e, g, w := s.ask(id, maxWait)
	if w != nil {
		g = s.wait(ctx, e, w, maxWait)
	}
	if g.done == nil {
		return nil, g.after, false
	}
	if s.slots.Acquire(ctx, 1) != nil {
		s.giveBack(e, g, webhook.Result{Class: webhook.ClassAborted})
		return nil, 0, false
	}
	return func(r webhook.Result) {
		s.slots.Release(1)
		s.giveBack(e, g, r)
	}, 0, true
}

// ask grants a slot, refuses it, or queues a waiter.
func (s *endpoints) ask(id uuid.UUID, maxWait time.Duration) (*endpoint, grant, *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.endpoint(id)
	s.serve(e)
	limit := s.limit(e)
	switch {
	case e.inFlight < limit:
		return e, s.grant(e), nil
	case e.inFlight == 0 || e.saturated || e.state != stateClosed || e.expectedWait(limit) > maxWait:
		return e, grant{after: s.deferral(e)}, nil
	}
	w := &waiter{ready: make(chan grant, 1)}
	e.waiting.PushBack(w)
	return e, grant{}, w
}

// limit is how many attempts the endpoint may have in flight now.
func (s *endpoints) limit(e *endpoint) int {
	free := s.Concurrency - s.used
	switch {
	case free > s.Concurrency/reservedShare:
		return min(max(free/freePerSlot, minPerEndpoint), s.PerEndpoint)
	case e.failing:
		return 0
	default:
		return 1
	}
}

func (e *endpoint) expectedWait(limit int) time.Duration {
	return time.Duration(e.waiting.Len()+1) * e.latency / time.Duration(max(limit, 1))
}

// grant takes a slot, unless the breaker is open.
func (s *endpoints) grant(e *endpoint) grant {
	done, err := e.breaker.Allow()
	if err != nil {
		return grant{after: s.deferral(e)}
	}
	e.inFlight++
	s.used++
	return grant{done: done}
}

// serve gives free slots to those who wait, in their order.
func (s *endpoints) serve(e *endpoint) {
	for e.waiting.Len() > 0 && e.inFlight < s.limit(e) {
		w := e.waiting.Remove(e.waiting.Front()).(*waiter)
		w.ready <- s.grant(e)
	}
}

// wait blocks until the waiter is served, its time is up, or ctx ends.
func (s *endpoints) wait(ctx context.Context, e *endpoint, w *waiter, maxWait time.Duration) grant {
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case g := <-w.ready:
		return g
	case <-timer.C:
	case <-ctx.Done():
	}
	return s.leave(e, w, ctx.Err() == nil)
}

// leave takes a waiter out of the queue; if it was served at the same moment,
// it has its slot.
func (s *endpoints) leave(e *endpoint, w *waiter, timedOut bool) grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := e.waiting.Front(); at != nil; at = at.Next() {
		if at.Value.(*waiter) == w {
			e.waiting.Remove(at)
			if !timedOut {
				return grant{}
			}
			e.saturated = true
			return grant{after: s.deferral(e)}
		}
	}
	return <-w.ready
}

var (
	errUnreachable = errors.New("endpoint out of reach")
	errNotCounted  = errors.New("attempt was aborted")
)

// giveBack frees a slot and learns from the attempt.
func (s *endpoints) giveBack(e *endpoint, g grant, r webhook.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.inFlight--
	s.used--
	e.saturated = false
	g.done(breakerError(r.Class))
	if !r.Aborted() {
		e.failing = r.Class.Unreachable()
		e.observe(r.Duration)
	}
	s.serve(e)
}

func breakerError(c webhook.ErrorClass) error {
	switch {
	case c == webhook.ClassAborted, c == webhook.ClassLocked:
		return errNotCounted
	case c.Unreachable():
		return errUnreachable
	default:
		return nil
	}
}

func (e *endpoint) observe(d time.Duration) {
	if e.latency == 0 {
		e.latency = d
		return
	}
	e.latency += (d - e.latency) / ewmaWeight
}

// deferral is when one more delivery should come back. Each endpoint has a
// virtual clock that moves on by one service time for every deferral, so that
// they return at the rate the endpoint can take instead of all at once.
func (s *endpoints) deferral(e *endpoint) time.Duration {
	now := s.Now()
	first := now.Add(minDeferral)
	step := e.latency / time.Duration(max(s.limit(e), 1))
	if e.state != stateClosed {
		first = later(first, e.probeAt)
		step = max(step, minStepOpen)
	}
	next := later(e.nextSlot, first).Add(step)
	if last := now.Add(maxDeferral); next.After(last) {
		next = last
	}
	e.nextSlot = next
	return next.Sub(now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// endpoint finds or makes the endpoint of a subscriber.
func (s *endpoints) endpoint(id uuid.UUID) *endpoint {
	if e := s.byID[id]; e != nil {
		s.lru.MoveToFront(e.place)
		return e
	}
	e := &endpoint{id: id, state: stateClosed}
	e.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:       s.BreakerPause,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= s.BreakerTripsAt },
		IsExcluded:    func(err error) bool { return errors.Is(err, errNotCounted) },
		OnStateChange: func(_ string, _, to gobreaker.State) { s.moved(e, to) },
	})
	e.place = s.lru.PushFront(e)
	s.byID[id] = e
	s.state[stateClosed]++
	s.evict()
	return e
}

// evict forgets the longest unused endpoints beyond the bound, but none that
// is in use.
func (s *endpoints) evict() {
	for at := s.lru.Back(); at != nil && len(s.byID) > s.MaxEndpoints; {
		e := at.Value.(*endpoint)
		at = at.Prev()
		if e.inFlight == 0 && e.waiting.Len() == 0 && e.place != s.lru.Front() {
			s.lru.Remove(e.place)
			delete(s.byID, e.id)
			s.state[e.state]--
		}
	}
}

// The states of an endpoint, as metric label values.
const (
	stateClosed   = "closed"
	stateHalfOpen = "half_open"
	stateOpen     = "open"
)

// moved notes a change of an endpoint's breaker.
func (s *endpoints) moved(e *endpoint, to gobreaker.State) {
	s.state[e.state]--
	switch to {
	case gobreaker.StateOpen:
		e.state, e.probeAt = stateOpen, s.Now().Add(s.BreakerPause)
	case gobreaker.StateHalfOpen:
		e.state = stateHalfOpen
	case gobreaker.StateClosed:
		e.state, e.nextSlot = stateClosed, time.Time{}
	}
	s.state[e.state]++
}

// counts is the number of remembered endpoints by breaker state. An open
// breaker counts as open until the first attempt after its pause.
func (s *endpoints) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]int{
		stateClosed: s.state[stateClosed], stateHalfOpen: s.state[stateHalfOpen], stateOpen: s.state[stateOpen],
	}
}

// inFlight is the number of attempts that hold a slot.
func (s *endpoints) inFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(s.used, s.Concurrency)
}
