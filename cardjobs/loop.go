package cardjobs

import (
	"context"
	"time"

	"spendhook/internal/pause"
)

// maxBackoff is the longest pause between failing passes.
const maxBackoff = 5 * time.Second

// loop runs pass at once and then repeatedly, with a pause after each run: every, or an
// increasing backoff while pass fails.
func (r *Runner) loop(ctx context.Context, what string, every time.Duration, pass func(context.Context) error) {
	for failures := 0; ; {
		if err := pass(ctx); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			r.opts.Logger.Warn("background step failed, trying again", "step", what, "exception.message", err)
		}
		if !pause.For(ctx, backoff(every, failures)) {
			return
		}
	}
}

// backoff doubles base with each failure in a row. The shift is bounded, so that it cannot
// overflow: 5 s << 16 is 4 days. There is no jitter: a try costs one small query per replica or
// worker.
func backoff(base time.Duration, failures int) time.Duration {
	if base >= maxBackoff {
		return base
	}
	return min(base<<min(failures, 16), maxBackoff)
}
