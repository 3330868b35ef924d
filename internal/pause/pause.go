// Package pause waits for a time, and retries with pauses.
package pause

import (
	"context"
	"time"
)

// For waits for d and reports true, or false when ctx ended first.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Until calls try at once, and again after each d, until it succeeds. It calls failed with the
// error of each failed try. When ctx ends first, it returns the error of the last try.
func Until(ctx context.Context, d time.Duration, try func() error, failed func(error)) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		failed(err)
		if !For(ctx, d) {
			return err
		}
	}
}
