package endpoint

import (
	"time"

	"github.com/google/uuid"
)

const ewmaWeight = 8 // the newest latency has a weight of 1/ewmaWeight in the average

// average is the new average of latencies; before is 0 for none.
func average(before, latency time.Duration) time.Duration {
	if before == 0 {
		return latency
	}
	return before + (latency-before)/ewmaWeight
}

// endpoint is the state of one receiver.
type endpoint struct {
	inFlight int
	waiting  []*Delivery // first come, first served; none while the breaker is open
	atHost   *host       // where the endpoint waits for its turn; nil: nowhere
	failing  bool        // unreachable at the last attempt
	latency  time.Duration
	// progressAt is when the last attempt ended; before that, when the first attempt began.
	progressAt  time.Time
	pausedUntil time.Time // end of the pause that the receiver asked for

	failures  int       // unreachable attempts in a row; the breaker is open from BreakerFailures on
	openUntil time.Time // when the endpoint queue may probe the endpoint, while the breaker is open
}

// isOpen reports whether the breaker of an endpoint is open. An open breaker makes all direct deliveries
// overflow. The endpoint queue has its own breaker: it makes one attempt at a time once a direct delivery
// has overflowed, or once BreakerFailures of its own attempts have failed. An answer to one of these attempts
// closes it. The breaker here closes when this replica gets an answer.
func (a *Admission) isOpen(e *endpoint) bool { return e.failures >= a.o.BreakerFailures }

// learn applies the result of an attempt to latency and breaker. A failure extends an open breaker by
// another BreakerPause.
func (a *Admission) learn(e *endpoint, r Result) {
	e.progressAt = a.o.Now()
	if r.NotCounted {
		return
	}
	if r.Pause > 0 {
		e.pausedUntil = a.o.Now().Add(r.Pause)
	}
	e.failing = r.Unreachable
	e.latency = average(e.latency, r.Latency)
	if a.isOpen(e) {
		a.open--
	}
	e.failures++
	if !r.Unreachable {
		e.failures = 0
	}
	if a.isOpen(e) {
		a.open++
		e.openUntil = a.o.Now().Add(a.o.BreakerPause)
	}
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
			if a.isOpen(e) {
				a.open--
			}
		}
	}
	e := &endpoint{}
	a.endpoints[id] = e
	return e
}
