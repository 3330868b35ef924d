package endpoint

import (
	"time"

	"github.com/google/uuid"
)

const ewmaWeight = 8 // the newest latency counts for one in so many

// endpoint is the state of one receiver.
type endpoint struct {
	id       uuid.UUID
	inFlight int
	waiting  []*Delivery // first come, first served; none while the breaker is not closed
	failing  bool        // out of reach at the last attempt
	latency  time.Duration
	// progressAt is when the last attempt ended, or the first began.
	progressAt time.Time
	// pausedUntil is when the pause ends that the receiver asked for.
	pausedUntil time.Time

	state    state
	failures int       // in a row
	probe    *Delivery // in flight while half open
	probeAt  time.Time // when an open breaker lets the next attempt through
}

// state is that of a breaker: closed, open after too many failures in a row,
// half open while a probe is in flight.
type state int

const (
	closed state = iota
	halfOpen
	open
)

// learn applies the result of an attempt to latency and breaker. An answer closes the
// breaker; a failure keeps an open breaker open for another pause.
func (a *Admission) learn(d *Delivery, e *endpoint, r Result) {
	defer a.setState(e)
	if e.probe == d {
		e.probe = nil
		if r.NotCounted {
			e.probeAt = a.o.Now()
		}
	}
	e.progressAt = a.o.Now()
	if r.NotCounted {
		return
	}
	if r.Pause > 0 {
		e.pausedUntil = a.o.Now().Add(r.Pause)
	}
	e.failing = r.Unreachable
	e.observe(r.Latency)
	if !r.Unreachable {
		e.failures, e.probe = 0, nil
		return
	}
	e.failures++
	if e.failures >= a.o.BreakerFailures {
		e.probeAt = a.o.Now().Add(a.o.BreakerPause)
	}
}

func (e *endpoint) observe(d time.Duration) {
	if e.latency == 0 {
		e.latency = d
		return
	}
	e.latency += (d - e.latency) / ewmaWeight
}

// setState follows the fields that make the state of the breaker.
func (a *Admission) setState(e *endpoint) {
	a.breakers[e.state]--
	switch {
	case e.failures < a.o.BreakerFailures:
		e.state = closed
	case e.probe != nil:
		e.state = halfOpen
	default:
		e.state = open
	}
	a.breakers[e.state]++
}

// endpoint finds or makes an endpoint. Beyond MaxEndpoints it forgets some that are not in use.
func (a *Admission) endpoint(id uuid.UUID) *endpoint {
	if e := a.endpoints[id]; e != nil {
		return e
	}
	for other, e := range a.endpoints {
		if len(a.endpoints) < a.o.MaxEndpoints {
			break
		}
		if e.inFlight+len(e.waiting) == 0 {
			delete(a.endpoints, other)
			a.breakers[e.state]--
		}
	}
	e := &endpoint{id: id}
	a.endpoints[id] = e
	a.breakers[closed]++
	return e
}
