package dispatcher

import "sync"

// room holds the deliveries that wait here for a slot of their endpoint. While
// there are limit of them no task brings more, and the task's worker takes no
// other: so in an overload work waits in the queue, in its order, and a replica
// that dies leaves little behind. Only endpoints that are quick have deliveries
// wait here, the others' are put off, so none can hold up the rest for long.
// Safe for concurrent use.
type room struct {
	limit int

	mu      sync.Mutex
	waiting int
	free    chan struct{} // closed when there is room again; nil while nobody waits for that
}

// enter brings in n deliveries once there is room, or stop is closed.
func (r *room) enter(n int, stop <-chan struct{}) {
	for {
		full := r.tryEnter(n)
		if full == nil {
			return
		}
		select {
		case <-full:
		case <-stop:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.waiting += n
			return
		}
	}
}

// tryEnter brings in n deliveries and returns nil, or what is closed when there
// is room.
func (r *room) tryEnter(n int) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting < r.limit {
		r.waiting += n
		return nil
	}
	if r.free == nil {
		r.free = make(chan struct{})
	}
	return r.free
}

// leave takes out one that has a slot, or was put off.
func (r *room) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	if r.free != nil && r.waiting < r.limit {
		close(r.free)
		r.free = nil
	}
}
