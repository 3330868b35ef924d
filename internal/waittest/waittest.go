// Package waittest has functions by which tests wait for conditions.
package waittest

import (
	"testing"
	"time"
)

// patience is far longer than any wait takes, even on a busy machine.
const patience = 3 * time.Minute

// Until waits until a condition holds. It fails the test after patience. what describes the
// condition: a string, or a function that returns one, which Until calls when the test fails.
func Until(tb testing.TB, what any, holds func() bool) {
	tb.Helper()
	Within(tb, patience, what, holds)
}

// Within is Until with a limit.
func Within(tb testing.TB, limit time.Duration, what any, holds func() bool) {
	tb.Helper()
	check := time.NewTicker(10 * time.Millisecond)
	defer check.Stop()
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for !holds() {
		select {
		case <-check.C:
		case <-timeout.C:
			if describe, ok := what.(func() string); ok {
				what = describe()
			}
			tb.Fatalf("not within %v: %v", limit, what)
		}
	}
}
