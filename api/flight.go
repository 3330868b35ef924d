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
// left for the next one.
//
// A company also gets no more than perSecond bytes a second, after a burst, since what
// large answers cost most is CPU: an answer that is written frees its memory at once, but
// counts as held by its company until its bytes have passed at that rate.
//
// It is safe for concurrent use.
type flight struct {
	perSecond int64
	now       func() time.Time

	mu      sync.Mutex
	free    int64
	held    map[string]int64     // by company
	passed  map[string]time.Time // when the written bytes of a company have passed at perSecond
	waiting []*share             // the first come first
}

// share is what one answer has of a flight, or waits for. A nil share has nothing.
type share struct {
	flight  *flight
	company string
	bytes   int64
	ready   chan struct{} // closed once it has what it asked for
}

func newFlight(bytes, perSecond int64, now func() time.Time) *flight {
	return &flight{perSecond: perSecond, now: now, free: bytes, held: map[string]int64{}, passed: map[string]time.Time{}}
}

// take waits for that many bytes, no longer than the patience. The error is a 503.
func (f *flight) take(ctx context.Context, company string, bytes int64, patience time.Duration) (*share, error) {
	p := &share{f, company, bytes, make(chan struct{})}
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

// keep gives back all but that many bytes.
func (p *share) keep(bytes int64) {
	if p == nil {
		return
	}
	p.flight.mu.Lock()
	defer p.flight.mu.Unlock()
	if less := p.bytes - bytes; less > 0 {
		p.bytes = bytes
		p.flight.free += less
		p.flight.release(p.company, less)
	}
}

// written gives back the bytes that are left, which are those of the answer.
func (p *share) written() {
	if p == nil {
		return
	}
	f, bytes := p.flight, p.bytes
	f.mu.Lock()
	defer f.mu.Unlock()
	p.bytes = 0
	f.free += bytes
	time.AfterFunc(f.pass(p.company, bytes), func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.release(p.company, bytes)
	})
	f.admit()
}

// pass is the time until written bytes have passed, after those that were written before.
func (f *flight) pass(company string, bytes int64) time.Duration {
	now := f.now()
	end := f.passed[company]
	if end.Before(now) {
		end = now
	}
	end = end.Add(time.Duration(float64(bytes) / float64(f.perSecond) * float64(time.Second)))
	f.passed[company] = end
	return end.Sub(now)
}

// release takes bytes from what a company holds.
func (f *flight) release(company string, bytes int64) {
	if f.held[company] -= bytes; f.held[company] == 0 {
		delete(f.held, company)
		delete(f.passed, company)
	}
	f.admit()
}

// admit gives out what is free, in the order in which it was asked for.
func (f *flight) admit() {
	f.waiting = slices.DeleteFunc(f.waiting, func(p *share) bool {
		if f.held[p.company] > f.free-p.bytes {
			return false
		}
		f.free -= p.bytes
		f.held[p.company] += p.bytes
		close(p.ready)
		return true
	})
}
