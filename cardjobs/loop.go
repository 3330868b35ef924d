package cardjobs

import (
	"context"
	"time"
)

// maxBackoff is the longest wait between tries at what keeps failing.
const maxBackoff = 5 * time.Second

// loop runs pass at once and then again and again, each time a while after it
// ended: every, or longer and longer while it fails.
func (r *Runner) loop(ctx context.Context, what string, every time.Duration, pass func(context.Context) error) {
	for failures := 0; ; {
		if err := pass(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			r.opts.Logger.Warn("will be tried again", "step", what, "exception.message", err)
		}
		if !r.pause(ctx, backoff(every, failures)) {
			return
		}
	}
}

// backoff doubles base with each failure in a row. The shift is bounded, so it
// cannot overflow: 5 s << 16 is 4 days. There is no jitter: a try is one small
// query for each replica, or for each of a few workers.
func backoff(base time.Duration, failures int) time.Duration {
	if base >= maxBackoff {
		return base
	}
	return min(base<<min(failures, 16), maxBackoff)
}

// pause waits, and reports false when ctx ended or Stop began first.
func (r *Runner) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-r.stopping:
		return false
	}
}
