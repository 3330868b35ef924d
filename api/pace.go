package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/internal/pause"
)

const (
	// maxPaceDelay bounds how long an answer is delayed. While an account is further ahead of the
	// rate, its reads (GET) are refused.
	maxPaceDelay = 2 * time.Second
	// paceBurst is how far the bytes of an account may be ahead of the rate without a delay.
	paceBurst = time.Second
	// maxPaced is the number of accounts in a pacer. The least recently used ones are removed.
	maxPaced = 10_000
	// refusalDelay delays answers to callers that send or read too much, so that a client that
	// ignores Retry-After takes little CPU from the others.
	refusalDelay = 500 * time.Millisecond
	// maxDelayed bounds the refusals that are delayed at a time. Further ones are answered at once. Each
	// may hold 64 KiB of headers, so all hold at most 64 MiB.
	maxDelayed = 1024
)

// pacer limits the bytes a second that each account reads from lists, feeds and exports of
// this process, since large answers cost CPU. An answer above the rate ends later. A
// pacer is safe for concurrent use.
type pacer struct {
	perSecond int64
	now       func() time.Time

	mu      sync.Mutex
	covered *lru.Cache[string, time.Time] // the time at which the rate covers the bytes of an account
}

func newPacer(perSecond int64, now func() time.Time) *pacer {
	covered, err := lru.New[string, time.Time](maxPaced)
	if err != nil {
		panic(err) // only for a size of 0
	}
	return &pacer{perSecond: perSecond, now: now, covered: covered}
}

// add counts bytes that an account has read, and returns the delay until the rate and its burst
// cover them.
func (p *pacer) add(account string, bytes int64) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	covered, _ := p.covered.Get(account)
	if covered.Before(now) {
		covered = now
	}
	covered = covered.Add(time.Duration(float64(bytes) / float64(p.perSecond) * float64(time.Second)))
	p.covered.Add(account, covered)
	return max(0, covered.Sub(now)-paceBurst)
}

// delayEnd delays the end of an answer, or the next part of a long list, when the account reads
// above the rate or the request was refused.
func (s *server) delayEnd(ctx context.Context, w http.ResponseWriter) {
	rec, ok := w.(*recorder)
	switch {
	case !ok || rec.request == nil:
	case rec.refused:
		if s.delayed.Add(1) <= maxDelayed {
			pause.For(ctx, refusalDelay)
		}
		s.delayed.Add(-1)
	case rec.request.paced:
		bytes := rec.bytes
		rec.bytes = 0
		pause.For(ctx, min(s.pacer.add(account(rec.request.Caller), bytes), maxPaceDelay))
	}
}

// checkPace returns a 503 while an account is further ahead of the rate than maxPaceDelay.
func (s *server) checkPace(account string) error {
	if s.pacer.add(account, 0) <= maxPaceDelay {
		return nil
	}
	return newProblem("OVERLOADED", "The company, or the client if it has no company, reads more than %d MiB of lists a second; try again.", s.pacer.perSecond>>20)
}
