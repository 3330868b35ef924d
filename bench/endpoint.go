package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// endpoint counts what one subscriber receives.
type endpoint struct {
	of       *receiver
	mode     atomic.Pointer[mode]
	attempts atomic.Int64 // with any answer

	mu        sync.Mutex
	seen      []uint64 // a bit for each event that was acknowledged
	latencies []uint32 // µs from the send time to the first acknowledged delivery of each event
	repeats   int64    // acknowledged deliveries beyond the first
	afterMark int64    // see tally.AfterMark; µs
	late      int64    // see tally.Watched; µs
	last      int64    // unix µs of the last acknowledged delivery
	gap       int64    // see tally.Gap; µs
}

func newEndpoint(of *receiver) *endpoint {
	e := &endpoint{of: of}
	e.mode.Store(&mode{})
	return e
}

func (e *endpoint) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts.Store(0)
	e.seen, e.latencies, e.repeats, e.afterMark, e.late = nil, nil, 0, 0, 0
	e.last, e.gap = 0, 0
}

// maxEvents bounds the distinct events of a run.
const maxEvents = 1 << 25

// take counts an acknowledged delivery that came at now.
func (e *endpoint) take(id eventID, now time.Time, mark int64, watched bool) {
	if id.n >= maxEvents {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if watched {
		e.late = max(e.late, now.UnixMicro()-mark)
	}
	e.gap, e.last = e.longestGap(now, mark), now.UnixMicro()
	word, bit := int(id.n/64), uint64(1)<<(id.n%64)
	for len(e.seen) <= word {
		e.seen = append(e.seen, 0)
	}
	if e.seen[word]&bit != 0 {
		e.repeats++
		return
	}
	e.seen[word] |= bit
	e.latencies = append(e.latencies, uint32(max(0, now.Sub(id.sent).Microseconds()))) //nolint:gosec // up to 71 min
	if mark > 0 && id.sent.UnixMicro() < mark {
		e.afterMark = max(e.afterMark, now.UnixMicro()-mark)
	}
}

// longestGap is the longest time without a delivery from the mark until now.
func (e *endpoint) longestGap(now time.Time, mark int64) int64 {
	if mark == 0 {
		return 0
	}
	if e.last < mark { // no delivery since the mark
		return now.UnixMicro() - mark
	}
	return max(e.gap, now.UnixMicro()-e.last)
}

// tally counts the events that some endpoints received in a run. Times are in microseconds.
// P50, P99 and Max are times from when an event was sent to the daemon until it was received.
type tally struct {
	Attempts  int64 `json:"attempts"`
	Distinct  int64 `json:"distinct"` // events × endpoints that were acknowledged
	Repeats   int64 `json:"repeats"`  // acknowledged deliveries beyond the first
	P50       int64 `json:"p50"`
	P99       int64 `json:"p99"`
	Max       int64 `json:"max"`
	AfterMark int64 `json:"after_mark"` // from the mark until the last first delivery of an event sent before it
	Watched   int64 `json:"watched"`    // from the mark until the last delivery, first or repeated, of an event that is watched
	Gap       int64 `json:"gap"`        // the longest time since the mark in which an endpoint received nothing
	Opened    int64 `json:"opened"`     // connections to any endpoint since the receiver started
}

// tallyOf sums up the endpoints of a list. An expected delivery that is missing counts with the
// time since the run began.
func (r *receiver) tallyOf(list []*endpoint, latency bool, expected int64) tally {
	t := tally{Opened: r.opened.Load()}
	now, mark := time.Now(), r.mark.Load()
	var all []uint32
	for _, e := range list {
		e.mu.Lock()
		t.Attempts += e.attempts.Load()
		t.Distinct += int64(len(e.latencies))
		t.Repeats += e.repeats
		t.AfterMark = max(t.AfterMark, e.afterMark)
		t.Watched = max(t.Watched, e.late)
		t.Gap = max(t.Gap, e.longestGap(now, mark))
		if latency {
			all = append(all, e.latencies...)
		}
		e.mu.Unlock()
	}
	for int64(len(all)) < expected {
		all = append(all, uint32(now.UnixMicro()-r.began.Load())) //nolint:gosec // up to 71 min
	}
	slices.Sort(all)
	t.P50, t.P99, t.Max = int64(quantile(all, 0.50)), int64(quantile(all, 0.99)), int64(quantile(all, 1))
	return t
}
