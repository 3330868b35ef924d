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
	s := &share{f, account, bytes, make(chan struct{})}
	f.mu.Lock()
	f.waiting = append(f.waiting, s)
	f.admit()
	f.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.ready:
	case <-timer.C:
		return s, f.leave(s)
	case <-ctx.Done():
		return s, f.leave(s)
	}
	return s, nil
}

// leave withdraws a request whose caller has stopped waiting.
func (f *flight) leave(s *share) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.waiting, s)
	if i < 0 {
		return nil // it got its bytes just now
	}
	f.waiting = slices.Delete(f.waiting, i, i+1)
	return newProblem(http.StatusServiceUnavailable, "OVERLOADED", "As many bytes of answers are under way as there may be, for the company or in all; try again.").
		with("Retry-After", "1")
}

// keep releases all but that many bytes.
func (s *share) keep(bytes int64) {
	if s == nil {
		return
	}
	f := s.flight
	f.mu.Lock()
	defer f.mu.Unlock()
	less := s.bytes - bytes
	if less <= 0 {
		return
	}
	s.bytes = bytes
	f.free += less
	if f.held[s.account] -= less; f.held[s.account] == 0 {
		delete(f.held, s.account)
	}
	f.admit()
}

// admit gives out free memory in the order of the requests. It skips requests of companies
// that hold too much.
func (f *flight) admit() {
	f.waiting = slices.DeleteFunc(f.waiting, func(s *share) bool {
		if f.held[s.account] > f.free-s.bytes {
			return false
		}
		f.free -= s.bytes
		f.held[s.account] += s.bytes
		close(s.ready)
		return true
	})
}
