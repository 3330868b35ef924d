package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

const (
	// gcPercent is how much the heap grows between collections, in percent of what is
	// live. Most of a daemon's heap is short-lived, and little of it live.
	gcPercent = 200
	// heapGrowth is the most that it grows so, in bytes, until that were too little of
	// what is live: many large requests at once must not take three times their size.
	heapGrowth   = 96 << 20
	minGCPercent = 50
)

// gcPercentOf is for so many live bytes.
func gcPercentOf(live uint64) int {
	if live == 0 {
		return gcPercent
	}
	return int(math.Min(gcPercent, math.Max(minGCPercent, 100*heapGrowth/float64(live))))
}

// tuneGC adapts how often garbage is collected to what is live, after each collection,
// until restore is called. GOGC in the environment decides instead.
func tuneGC() (restore func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	before := debug.SetGCPercent(gcPercent)
	var stopped atomic.Bool
	var follow func(set int)
	follow = func(set int) {
		if stopped.Load() {
			return
		}
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if percent := gcPercentOf(live[0].Value.Uint64()); percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		// Unreferenced objects are cleaned up after the next collection.
		runtime.AddCleanup(new(*byte), follow, set)
	}
	follow(gcPercent)
	return func() {
		stopped.Store(true)
		debug.SetGCPercent(before)
	}
}
