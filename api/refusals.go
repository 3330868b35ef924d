package api

import (
	"context"
	"sync"
	"time"

	"spendhook/internal/pause"
)

const (
	refusalDelay = 500 * time.Millisecond
	// Beyond these counts a refusal is answered at once.
	maxDelayedOfOne = 512 // of one company, or of one client that belongs to none
	maxDelayed      = 4096
)

// refusals delays answers to callers that send or read too much, so that a client that
// ignores Retry-After takes little CPU from the others. It is safe for concurrent use.
type refusals struct {
	mu      sync.Mutex
	total   int
	delayed map[string]int // by account
}

func newRefusals() *refusals { return &refusals{delayed: map[string]int{}} }

// delay waits before a refusal is answered, no longer than ctx.
func (f *refusals) delay(ctx context.Context, account string) {
	if !f.begin(account) {
		return
	}
	defer f.end(account)
	pause.For(ctx, refusalDelay)
}

func (f *refusals) begin(account string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.total == maxDelayed || f.delayed[account] == maxDelayedOfOne {
		return false
	}
	f.total++
	f.delayed[account]++
	return true
}

func (f *refusals) end(account string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total--
	if f.delayed[account]--; f.delayed[account] == 0 {
		delete(f.delayed, account)
	}
}
