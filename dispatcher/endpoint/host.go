package endpoint

import (
	"time"

	"github.com/google/uuid"
)

// hostKey identifies the limit of one company at a host. Each company has its own limit.
type hostKey struct {
	company uuid.UUID
	host    string
}

// host counts the attempts of one company in flight to one host. It is dropped with the last
// attempt.
type host struct {
	inFlight   int
	latency    time.Duration // average of its attempts
	progressAt time.Time     // when the last attempt ended; before that, when the first attempt began
	waiting    []waiter      // served in turn; none while the host has a place
}

// waiter is what starts when the host has a place again: a Queued delivery, or the first of an endpoint's
// waiting deliveries.
type waiter struct {
	queued   *Delivery
	endpoint *endpoint // when queued is nil
}

func keyOf(d *Delivery) hostKey { return hostKey{d.Company, d.Host} }

// hostFull reports whether no more attempts may start at the delivery's host.
func (a *Admission) hostFull(d *Delivery) bool {
	h := a.hosts[keyOf(d)]
	return h != nil && (h.inFlight >= a.o.PerHost || len(h.waiting) > 0)
}

// hostBusy reports whether one more delivery of the company would wait for a full host longer than maxWait,
// if all deliveries of the company in memory went there.
func (a *Admission) hostBusy(c *company, d *Delivery) bool {
	h := a.hosts[keyOf(d)]
	latency := max(h.latency, a.o.Now().Sub(h.progressAt))
	return time.Duration(c.held-h.inFlight+1)*latency/time.Duration(a.o.PerHost) > maxWait
}

// waitAtHost has the waiting deliveries of an endpoint started when their host, which is full, has places
// again.
func (a *Admission) waitAtHost(e *endpoint) {
	if h := a.hosts[keyOf(e.waiting[0])]; e.atHost != h {
		h.waiting = append(h.waiting, waiter{endpoint: e})
		e.atHost = h
	}
}

// startAtHost counts an attempt that starts.
func (a *Admission) startAtHost(d *Delivery) {
	if d.Host == "" {
		return
	}
	h := a.hosts[keyOf(d)]
	if h == nil {
		h = &host{progressAt: a.o.Now()}
		a.hosts[keyOf(d)] = h
	}
	h.inFlight++
}

// leaveHost frees the place of an attempt at its host. serveHost must follow.
func (a *Admission) leaveHost(d *Delivery, r Result) {
	h := a.hosts[keyOf(d)]
	if h == nil {
		return
	}
	h.inFlight--
	h.progressAt = a.o.Now()
	if !r.NotCounted {
		h.latency = average(h.latency, r.Latency)
	}
}

// serveHost starts what waits for the host of a delivery, each waiting endpoint in turn.
func (a *Admission) serveHost(of *Delivery) (started []decided) {
	key := keyOf(of)
	h := a.hosts[key]
	if h == nil {
		return nil
	}
	for h.inFlight < a.o.PerHost && len(h.waiting) > 0 && !a.stopped {
		first := h.waiting[0]
		h.waiting[0] = waiter{}
		h.waiting = h.waiting[1:]
		if d := first.queued; d != nil {
			a.start(d, a.endpoint(d.Endpoint))
			started = append(started, decided{deliveries: []*Delivery{d}, decision: Start})
			continue
		}
		e := first.endpoint
		if e.atHost != h { // its URL has changed
			continue
		}
		if e.atHost = nil; len(e.waiting) == 0 {
			continue
		}
		c := a.companies[e.waiting[0].Company]
		if keyOf(e.waiting[0]) == key && e.inFlight < a.limit(e) {
			a.start(e.waiting[0], e)
			started = append(started, takeWaiting(e, 1))
		}
		started = append(started, a.next(c, e))
	}
	if h.inFlight == 0 {
		delete(a.hosts, key)
	}
	return started
}
