package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/pause"
)

const (
	retryEvery = 250 * time.Millisecond
	tryTimeout = 1500 * time.Millisecond
	// maxLater bounds the calls that are tried again. An answer has at most about 64 KiB, so they hold 8 MiB.
	maxLater = 128
)

// later tries calls again that Redis has not answered in time. Without this, the key would be in progress
// until the claim expires, although the request has long been answered, and the request would then be carried
// out again.
type later struct {
	pauses context.Context //nolint:containedctx // ends with close: no more tries
	end    context.CancelFunc

	mu      sync.Mutex // guards running, and adding to tries
	running int
	tries   sync.WaitGroup
}

func newLater() *later {
	l := &later{}
	l.pauses, l.end = context.WithCancel(context.Background())
	return l
}

// unless calls try, and adds it after an error.
func (l *later) unless(ctx context.Context, try func(context.Context) error) error {
	err := try(ctx)
	if err != nil {
		l.add(try) //nolint:contextcheck // it outlives the request
	}
	return err
}

// add calls try until it succeeds, for the time of a claim. It does nothing after close, and while maxLater
// calls are tried.
func (l *later) add(try func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == maxLater || l.pauses.Err() != nil {
		return
	}
	l.running++
	l.tries.Go(func() {
		l.run(try)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
	})
}

func (l *later) run(try func(context.Context) error) {
	pauses, cancel := context.WithTimeout(l.pauses, claimTTL)
	defer cancel()
	once := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
		defer cancel()
		err := try(ctx)
		if errors.Is(err, redis.ErrClosed) {
			return nil // for good
		}
		return err
	}
	_ = pause.Until(pauses, retryEvery, once, func(error) {})
}

func (l *later) close() {
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.tries.Wait()
}
