package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

const (
	// gcPercent is the growth of the heap between collections, in percent of the live heap.
	// Most objects of the daemon are short-lived, and the live heap is small.
	gcPercent = 200
	// heapGrowth bounds this growth in bytes, down to minGCPercent, so that many large
	// requests at once do not take three times their size.
	heapGrowth   = 96 << 20
	minGCPercent = 50
)

// gcPercentOf returns the GC percentage for a live heap of that many bytes.
func gcPercentOf(live uint64) int {
	if live == 0 {
		return gcPercent
	}
	return int(math.Min(gcPercent, math.Max(minGCPercent, 100*heapGrowth/float64(live))))
}

// tuneGC adapts the GC percentage to the live heap after each collection, from the first call
// on. It does nothing if GOGC is set.
var tuneGC = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		followHeap(0)
	}
})

// followHeap sets the GC percentage, if it is not set yet, and again after the next collection.
func followHeap(set int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	if percent := gcPercentOf(live[0].Value.Uint64()); percent != set {
		debug.SetGCPercent(percent)
		set = percent
	}
	runtime.AddCleanup(new(*byte), followHeap, set) // the next collection cleans up this unreferenced object
}
