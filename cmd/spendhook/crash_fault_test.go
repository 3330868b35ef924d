//go:build faults

package main

import "testing"

func TestKillLosesNothingOfMany(t *testing.T) {
	t.Parallel()
	killLosesNothing(t, 20_000)
}

func TestStoppingLosesNothingOfMany(t *testing.T) {
	t.Parallel()
	stoppingLosesNothing(t, 20_000)
}
