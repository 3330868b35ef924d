// Package waittest lets tests wait for conditions.
package waittest

import (
	"testing"
	"time"
)

// patience is far longer than a wait takes, also on a busy machine.
const patience = 3 * time.Minute

// Until waits until a condition holds. The test fails if it takes minutes. what describes the
// condition: a string, or a function that returns one, which is called when the test fails.
func Until(tb testing.TB, what any, holds func() bool) {
	tb.Helper()
	Within(tb, patience, what, holds)
}

// Within is Until with a limit.
func Within(tb testing.TB, limit time.Duration, what any, holds func() bool) {
	tb.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	late := time.NewTimer(limit)
	defer late.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-late.C:
			if say, ok := what.(func() string); ok {
				what = say()
			}
			tb.Fatalf("after %v still not: %v", limit, what)
		}
	}
}
