package endpoint

import "github.com/google/uuid"

// hostKey identifies the limit of one company at a host. Each company has its own limit.
type hostKey struct {
	company uuid.UUID
	host    string
}

// host counts the attempts of one company in flight to one host. It is dropped with the last
// attempt.
type host struct {
	inFlight int
	waiting  []*Delivery // Queued ones, first come, first served; none while the host has a place
}

func keyOf(d *Delivery) hostKey { return hostKey{d.Company, d.Host} }

// hostFull reports whether no more attempts may start at the delivery's host.
func (a *Admission) hostFull(d *Delivery) bool {
	h := a.hosts[keyOf(d)]
	return h != nil && (h.inFlight >= a.o.PerHost || len(h.waiting) > 0)
}

// startAtHost counts an attempt that starts.
func (a *Admission) startAtHost(d *Delivery) {
	if d.Host == "" {
		return
	}
	h := a.hosts[keyOf(d)]
	if h == nil {
		h = &host{}
		a.hosts[keyOf(d)] = h
	}
	h.inFlight++
}

// leaveHost frees the place of an attempt at its host, and starts the delivery that waited
// longest for the host.
func (a *Admission) leaveHost(d *Delivery) (started []decided) {
	h := a.hosts[keyOf(d)]
	if h == nil {
		return nil
	}
	h.inFlight--
	if len(h.waiting) > 0 && !a.stopped {
		next := h.waiting[0]
		h.waiting[0] = nil
		h.waiting = h.waiting[1:]
		a.start(next, a.endpoint(next.Endpoint))
		return []decided{{deliveries: []*Delivery{next}, decision: Start}}
	}
	if h.inFlight == 0 {
		delete(a.hosts, keyOf(d))
	}
	return nil
}
