package main

import "testing"

// A small heap may grow to three times its live bytes, a large heap only by half.
func TestTheHeapGrowsByABoundedAmount(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 200, 10 << 20: 200, 48 << 20: 200, 96 << 20: 100, 192 << 20: 50, 4 << 30: 50} {
		if got := gcPercentOf(live); got != want {
			t.Errorf("%d MB live: %d %%, want %d %%", live>>20, got, want)
		}
	}
}
