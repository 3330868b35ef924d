package dispatcher

import "sync"

// room counts the deliveries that are taken from the queue and wait for their
// attempt. While there are limit of them no further task is begun: so in an
// overload work waits in the queue, in its order, and a replica that dies leaves
// little behind. Only endpoints that are quick have deliveries wait here, the
// others' are put off, so none can hold up the rest for long. Safe for
// concurrent use.
type room struct {
	limit int

	mu      sync.Mutex
	waiting int
	free    chan struct{} // closed when there is room again; nil while nobody waits for that
}

// enter waits until there is room; errStopping when stop is closed before.
func (r *room) enter(stop <-chan struct{}) error {
	for {
		full := r.full()
		if full == nil {
			return nil
		}
		select {
		case <-full:
		case <-stop:
			return errStopping
		}
	}
}

// full is nil when there is room, else what is closed when there is.
func (r *room) full() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting < r.limit {
		return nil
	}
	if r.free == nil {
		r.free = make(chan struct{})
	}
	return r.free
}

// add counts n more, or n less, that wait.
func (r *room) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting += n
	if r.free != nil && r.waiting < r.limit {
		close(r.free)
		r.free = nil
	}
}
