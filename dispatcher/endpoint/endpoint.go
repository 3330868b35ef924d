package endpoint

import (
	"cmp"
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
	url      int         // how often its URL was changed, as far as known
	renewed  bool        // what was learned of the former URL was forgotten since the last attempt
	host     hostKey     // of its last delivery
	waiting  []*Delivery // first come, first served; none while the breaker is open
	atHost   *host       // where the endpoint waits for its turn; nil: nowhere
	failing  bool        // unreachable at the last attempt
	latency  time.Duration
	// progressAt is when the last attempt ended; before that, when the first attempt began.
	progressAt  time.Time
	pausedUntil time.Time // end of the pause that the receiver asked for

	learned   bool      // failures and the times came from Redis since the last result, and are of the present URL
	failures  int       // unreachable attempts in a row; the breaker is open from BreakerFailures on
	openUntil time.Time // when the retry set may probe the endpoint, while the breaker is open

	ramp     int       // how many attempts may be in flight while the load grows again; 0: no such limit
	halvedAt time.Time // when a 429 last halved the load
}

// setRamp sets how many attempts may be in flight. From PerEndpoint on there is no such limit.
func (a *Admission) setRamp(e *endpoint, attempts int) {
	if e.ramp > 0 {
		a.slowed--
	}
	if e.ramp = attempts; attempts >= a.o.PerEndpoint {
		e.ramp = 0
	}
	if e.ramp > 0 {
		a.slowed++
	}
}

// opened notes that the breaker of an endpoint is open. Its load is limited when it recovers.
func (a *Admission) opened(e *endpoint) {
	a.open++
	a.setRamp(e, a.o.PerEndpoint)
}

// ramped grows or halves the load of an endpoint. After an outage it begins with one attempt, and each answer allows one
// more, so the load doubles with each round of answers. A 429 halves it, once for the attempts that were in flight together.
func (a *Admission) ramped(e *endpoint, recovered bool, r Result) {
	now := a.o.Now()
	switch {
	case recovered:
		a.setRamp(e, 1)
	case r.TooMany && !now.Add(-r.Latency).Before(e.halvedAt):
		e.halvedAt = now
		a.setRamp(e, max(1, cmp.Or(e.ramp, a.o.PerEndpoint)/2))
	case e.ramp > 0 && !r.TooMany && !r.Unreachable:
		a.setRamp(e, e.ramp+1)
	}
}

// isOpen reports whether the breaker of an endpoint is open. An open breaker makes all direct deliveries wait. One
// waiting delivery at a time probes the endpoint, after each BreakerPause. An answer closes the breaker.
func (a *Admission) isOpen(e *endpoint) bool { return e.failures >= a.o.BreakerFailures }

// busy reports whether the endpoint cannot start a delivery now.
func (a *Admission) busy(e *endpoint) bool {
	h, now := a.hosts[e.host], a.o.Now()
	return len(e.waiting) > 0 || e.inFlight >= a.limit(e) || h != nil && (h.inFlight >= a.o.PerHost || len(h.waiting) > 0) ||
		now.Before(e.pausedUntil) || a.isOpen(e) && now.Before(e.openUntil)
}

// MayStart returns how many attempts of deliveries that wait for an endpoint may start now. When there are none because the
// breaker is open or the receiver asked for a pause, it returns when that ends, else a zero time.
func (a *Admission) MayStart(_, id uuid.UUID) (int, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e, now := a.endpoints[id], a.o.Now()
	switch {
	case a.stopped:
		return 0, time.Time{}
	case e == nil:
		return a.limit(&endpoint{}), time.Time{}
	case now.Before(e.pausedUntil):
		return 0, e.pausedUntil
	case a.isOpen(e) && now.Before(e.openUntil):
		return 0, e.openUntil
	case a.isOpen(e):
		return max(0, 1-e.inFlight), time.Time{}
	}
	return max(0, a.limit(e)-e.inFlight-len(e.waiting)), time.Time{}
}

// Learned sets what is known of an endpoint: unreachable attempts in a row, and for how long it is not to be attempted.
func (a *Admission) Learned(_, id uuid.UUID, failures int, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.endpoint(id)
	if a.isOpen(e) {
		a.open--
	}
	until := a.o.Now().Add(wait)
	e.failures, e.failing, e.openUntil, e.pausedUntil, e.learned = failures, failures > 0, until, until, true
	if a.isOpen(e) {
		a.opened(e)
	}
}

// renew forgets what was learned of an endpoint's former URL, when the endpoint gets its first delivery to another one.
func (a *Admission) renew(e *endpoint, url int) {
	switch {
	case url <= e.url:
		return
	case e.learned:
		e.url, e.latency = url, 0
		if !a.isOpen(e) {
			a.setRamp(e, a.o.PerEndpoint)
		}
		return
	}
	if a.isOpen(e) {
		a.open--
	}
	e.url, e.renewed = url, true
	e.failing, e.latency, e.failures = false, 0, 0
	a.setRamp(e, a.o.PerEndpoint)
	e.openUntil, e.pausedUntil = time.Time{}, time.Time{}
}

// Learn notes the result of an attempt as far as it concerns the endpoint, before Leave. It returns the unreachable
// attempts in a row and for how long the endpoint is not to be attempted, and whether that is new. The result of an
// attempt to a former URL says nothing about the endpoint.
func (a *Admission) Learn(d *Delivery, r Result) (failures int, wait time.Duration, news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.endpoints[d.Endpoint]
	if d.URL < e.url {
		return e.failures, 0, false
	}
	before, renewed := e.failures, e.renewed
	e.renewed = false
	a.learn(e, r)
	now, until := a.o.Now(), e.pausedUntil
	if a.isOpen(e) && e.openUntil.After(until) {
		until = e.openUntil
	}
	return e.failures, max(0, until.Sub(now)), renewed || e.failures != before || !r.NotCounted && r.Pause > 0
}

// learn applies the result of an attempt to latency and breaker. A failure extends an open breaker by
// another BreakerPause.
func (a *Admission) learn(e *endpoint, r Result) {
	e.progressAt = a.o.Now()
	if r.NotCounted {
		return
	}
	e.learned = false
	if r.Pause > 0 {
		e.pausedUntil = a.o.Now().Add(r.Pause)
	}
	e.failing = r.Unreachable
	e.latency = average(e.latency, r.Latency)
	a.ramped(e, a.isOpen(e) && !r.Unreachable, r)
	if a.isOpen(e) {
		a.open--
	}
	e.failures++
	if !r.Unreachable {
		e.failures = 0
	}
	if a.isOpen(e) {
		a.opened(e)
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
			a.setRamp(e, a.o.PerEndpoint)
			if a.isOpen(e) {
				a.open--
			}
		}
	}
	e := &endpoint{}
	a.endpoints[id] = e
	return e
}
