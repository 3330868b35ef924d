// Package pause waits, and tries again.
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

// Until tries at once, and again every d, until it succeeds. failed hears of each try that
// did not. When ctx ends first, it returns the error of the last try.
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
