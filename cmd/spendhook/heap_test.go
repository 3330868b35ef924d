package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestGCPercent(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	for _, c := range []struct {
		h    heap
		want int
	}{
		{heap{}, 1600}, // Go's least heap, 4 MB, becomes 64
		{heap{live: 1 * mb}, 1600},
		{heap{live: 8 * mb}, 700},
		{heap{live: 8 * mb, roots: 8 * mb}, 350},
		{heap{live: 32 * mb}, 100},
		{heap{live: 63 * mb}, 100},
		{heap{live: 64 * mb}, 100},
		{heap{live: 900 * mb}, 100},
	} {
		if got := gcPercent(c.h, 64*mb); got != c.want {
			t.Errorf("%+v: %d, want %d", c.h, got, c.want)
		}
	}
}

// TestHeapFloor: the collector's goal is the floor at every collection, until it
// is released.
func TestHeapFloor(t *testing.T) { //nolint:paralleltest // the collector is the process's
	const floor = 512 << 20 // more than the tests have live
	release := holdFloor(floor)
	defer release()
	live := make([]byte, 32<<20) // at the percentage for a heap without it, the goal would be 4 GB
	for range 5 {
		awaitGoal(t, "held", func(goal uint64) bool { return goal > floor*9/10 && goal < floor*11/10 })
	}
	runtime.KeepAlive(live)
	release()
	awaitGoal(t, "released", func(goal uint64) bool { return goal < floor/2 })
	if percent := debug.SetGCPercent(goPercent); percent != goPercent {
		t.Errorf("GOGC is %d afterwards", percent)
	}
}

// awaitGoal collects until the goal is as it should be: the finalizer that sets
// it runs a moment after.
func awaitGoal(t *testing.T, when string, good func(uint64) bool) {
	t.Helper()
	goal := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
	for range 1000 {
		runtime.GC()
		if metrics.Read(goal); good(goal[0].Value.Uint64()) {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%s: the goal is %d MB", when, goal[0].Value.Uint64()>>20)
}

func TestHeapFloorIsTheOperators(t *testing.T) {
	t.Setenv("GOGC", "100")
	before := debug.SetGCPercent(goPercent)
	defer debug.SetGCPercent(before)
	defer holdHeapFloor()()
	if percent := debug.SetGCPercent(goPercent); percent != goPercent {
		t.Errorf("GOGC is %d although it was set", percent)
	}
}
