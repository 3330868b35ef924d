package auth

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"
)

// refreshTimeout bounds how long a request waits for keys that may be new.
const refreshTimeout = time.Second

// throttle runs a function at most once per interval. Callers that come while it runs wait
// for its result.
type throttle struct {
	every time.Duration

	calls singleflight.Group
	last  time.Time // used within a call alone
}

// do calls run, or waits for a call under way. It does nothing if the last call began less
// than the interval ago.
func (t *throttle) do(ctx context.Context, now time.Time, run func(context.Context)) {
	done := t.calls.DoChan("", func() (any, error) {
		if t.last.IsZero() || now.Sub(t.last).Abs() >= t.every {
			t.last = now
			// run serves all waiting callers, so the first caller's cancellation must not end it.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
			defer cancel()
			run(ctx)
		}
		return nil, nil
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}
