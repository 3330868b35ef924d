package porttest_test

import (
	"testing"

	"spendhook/internal/porttest"
)

// With 1,000 of 22,768 ports, an unreserved one would be returned twice.
func TestNoPortIsReturnedTwice(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 1000 {
		port := porttest.Free(t)
		if seen[port] {
			t.Fatalf("port %d was returned twice", port)
		}
		seen[port] = true
	}
}
