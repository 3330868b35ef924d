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
	held    map[string]int64 // by account
	waiting []*share         // the first come first
}

// share is the memory that one answer has, or waits for. A nil share has none.
type share struct {
	flight  *flight
	account string
	bytes   int64
	ready   chan struct{} // closed once it has what it asked for
}

func newFlight(bytes int64) *flight { return &flight{free: bytes, held: map[string]int64{}} }

// take waits for that many bytes, no longer than the patience. The error is a 503.
func (f *flight) take(ctx context.Context, account string, bytes int64, patience time.Duration) (*share, error) {
	p := &share{f, account, bytes, make(chan struct{})}
	f.mu.Lock()
	f.waiting = append(f.waiting, p)
	f.admit()
	f.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ready:
	case <-timer.C:
		return p, f.leave(p)
	case <-ctx.Done():
		return p, f.leave(p)
	}
	return p, nil
}

// leave withdraws a request whose caller has stopped waiting.
func (f *flight) leave(p *share) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.waiting, p)
	if i < 0 {
		return nil // it got its bytes just now
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	return newProblem(http.StatusServiceUnavailable, "OVERLOADED", "As many bytes of answers are under way as there may be, for the company or in all; try again.").
		with("Retry-After", "1")
}

// keep releases all but that many bytes.
func (p *share) keep(bytes int64) {
	if p == nil {
		return
	}
	f := p.flight
	f.mu.Lock()
	defer f.mu.Unlock()
	less := p.bytes - bytes
	if less <= 0 {
		return
	}
	p.bytes = bytes
	f.free += less
	if f.held[p.account] -= less; f.held[p.account] == 0 {
		delete(f.held, p.account)
	}
	f.admit()
}

// admit gives out free memory in the order of the requests. It skips requests of companies
// that hold too much.
func (f *flight) admit() {
	f.waiting = slices.DeleteFunc(f.waiting, func(p *share) bool {
		if f.held[p.account] > f.free-p.bytes {
			return false
		}
		f.free -= p.bytes
		f.held[p.account] += p.bytes
		close(p.ready)
		return true
	})
}
