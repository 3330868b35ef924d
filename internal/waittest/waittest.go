// Package waittest has functions by which tests wait for conditions.
package waittest

import (
	"testing"
	"time"
)

const (
	every = 10 * time.Millisecond
	// patience is far longer than any wait takes.
	patience = 5 * time.Minute
)

// Until waits until a condition holds. It fails the test after patience. what describes the
// condition: a string, or a function that returns one, which Until calls when the test fails.
func Until(tb testing.TB, what any, holds func() bool) {
	tb.Helper()
	Within(tb, patience, what, holds)
}

// Within is Until with a limit. The limit is a number of checks, not a time: on a busy machine each check takes
// longer, and so may the wait.
func Within(tb testing.TB, limit time.Duration, what any, holds func() bool) {
	tb.Helper()
	check := time.NewTicker(every)
	defer check.Stop()
	for left := limit / every; !holds(); left-- {
		if left <= 0 {
			if describe, ok := what.(func() string); ok {
				what = describe()
			}
			tb.Fatalf("not within %v: %v", limit, what)
		}
		<-check.C
	}
}
