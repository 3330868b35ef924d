package auth

import (
	"context"
	"sync"
	"time"
)

// refreshTimeout bounds how long a request waits for keys that may be new.
const refreshTimeout = time.Second

// throttle runs a function at most once per interval. Callers that come while it runs wait
// for its result.
type throttle struct {
	every time.Duration

	mu      sync.Mutex
	last    time.Time
	running chan struct{} // closed when the run ends; nil while there is none
}

// do calls run, or waits for a call under way. It returns at once if the last call began
// less than the interval ago.
func (t *throttle) do(ctx context.Context, now time.Time, run func(context.Context)) {
	t.mu.Lock()
	if done := t.running; done != nil {
		t.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		return
	}
	if !t.last.IsZero() && now.Sub(t.last).Abs() < t.every {
		t.mu.Unlock()
		return
	}
	done := make(chan struct{})
	t.last, t.running = now, done
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		t.running = nil
		t.mu.Unlock()
		close(done)
	}()
	// run serves all waiting callers, so the first caller's cancellation must not end it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
	defer cancel()
	run(ctx)
}
