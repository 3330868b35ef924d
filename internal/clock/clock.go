// Package clock returns the clock of an Options struct: the given one, or the real one for nil.
package clock

import "time"

// Or returns now, or the real clock when now is nil.
func Or(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now //nolint:forbidigo // the one default
	}
	return now
}
