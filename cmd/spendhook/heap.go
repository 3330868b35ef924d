package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// heapFloor is what the heap may grow to, in bytes, before it is collected,
// however little of it is live. Go alone collects a daemon whose live heap is
// 10 MB each time another 10 MB were allocated: many times a second under load.
const heapFloor = 56 << 20

// minHeap is the least goal of a collection that Go knows, at a GOGC of 100 and
// in proportion at others.
const minHeap = 4 << 20

// holdHeapFloor has each collection of garbage set the next one's goal, to
// twice the live heap as ever but at least heapFloor, until release. A GOGC in
// the environment means that the operator decides. GOMEMLIMIT holds as ever.
func holdHeapFloor() (release func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	return holdFloor(heapFloor)
}

func holdFloor(floor uint64) (release func()) {
	var mu sync.Mutex
	released := false
	var collected func(*sentinel)
	collected = func(s *sentinel) {
		mu.Lock()
		defer mu.Unlock()
		if released {
			return
		}
		debug.SetGCPercent(gcPercent(readHeap(), floor))
		runtime.SetFinalizer(s, collected)
	}
	collected(&sentinel{})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		released = true
		debug.SetGCPercent(goPercent)
	}
}

// sentinel is garbage at every collection, whose finalizer tells that there was
// one.
type sentinel struct{ _ *sentinel }

// heap is what the collector found last, in bytes.
type heap struct {
	live  uint64
	roots uint64 // what it scans besides: stacks and globals
}

func readHeap() heap {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(sample)
	return heap{live: sample[0].Value.Uint64(), roots: sample[1].Value.Uint64() + sample[2].Value.Uint64()}
}

const goPercent = 100 // Go's own GOGC

// gcPercent is the GOGC with which the next collection's goal, by the formula
// of Go's guide to its collector, live + (live + roots) × GOGC/100, is floor; or
// Go's own, where that allows more.
func gcPercent(h heap, floor uint64) int {
	if h.live >= floor {
		return goPercent
	}
	percent := floor * goPercent / minHeap
	if scanned := h.live + h.roots; scanned > 0 {
		percent = min(percent, (floor-h.live)*goPercent/scanned)
	}
	return int(max(percent, goPercent)) //nolint:gosec // at most floor / minHeap × 100
}
