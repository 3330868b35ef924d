package api

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// flight bounds the bytes of the answers that are under way in this process: from
// before they are read until they are written. A company that holds more than what is
// left free gets no more for now. So one company may use half of it, and some is always
// left for the next one. It is safe for concurrent use.
type flight struct {
	mu      sync.Mutex
	free    int64
	held    map[string]int64
	waiting []*waiter // the first come first
}

type waiter struct {
	who   string
	bytes int64
	ready chan struct{} // closed once it has what it asked for
}

func newFlight(bytes int64) *flight { return &flight{free: bytes, held: map[string]int64{}} }

// take waits for that many bytes, no longer than the patience. change releases what is
// not needed any more: it takes the bytes that are needed from then on, 0 for none.
// The error is a 503.
func (f *flight) take(ctx context.Context, who string, bytes int64, patience time.Duration) (change func(bytes int64), err error) {
	p := &waiter{who, bytes, make(chan struct{})}
	f.mu.Lock()
	f.waiting = append(f.waiting, p)
	f.admit()
	f.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ready:
	case <-timer.C:
		err = f.leave(p)
	case <-ctx.Done():
		err = f.leave(p)
	}
	return func(bytes int64) { f.change(p, bytes) }, err
}

// leave withdraws a request whose caller has stopped waiting.
func (f *flight) leave(p *waiter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.waiting, p)
	if i < 0 {
		return nil // it got its bytes just now
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	return newProblem(http.StatusServiceUnavailable, "OVERLOADED", "As many bytes of answers are under way as there may be; try again.").
		with("Retry-After", "1")
}

// change makes what a waiter holds fewer bytes.
func (f *flight) change(p *waiter, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if bytes >= p.bytes {
		return
	}
	f.free += p.bytes - bytes
	if f.held[p.who] -= p.bytes - bytes; f.held[p.who] == 0 {
		delete(f.held, p.who)
	}
	p.bytes = bytes
	f.admit()
}

// admit gives out what is free, in the order in which it was asked for.
func (f *flight) admit() {
	f.waiting = slices.DeleteFunc(f.waiting, func(p *waiter) bool {
		if f.held[p.who] > f.free-p.bytes {
			return false
		}
		f.free -= p.bytes
		f.held[p.who] += p.bytes
		close(p.ready)
		return true
	})
}
