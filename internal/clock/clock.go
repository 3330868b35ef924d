// Package clock has the clock that nil stands for in Options.
package clock

import "time"

// Or returns now, or the real clock when now is nil.
func Or(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now //nolint:forbidigo // the one default
	}
	return now
}
