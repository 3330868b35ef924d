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
	attempts atomic.Int64 // whatever the answer

	mu        sync.Mutex
	seen      []uint64 // a bit for each event that was acknowledged
	latencies []uint32 // µs from sent to received, of the first time each
	repeats   int64    // acknowledged once more
	afterMark int64    // see tally.AfterMark; µs
	late      int64    // see tally.Watched; µs
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
}

// maxEvents of a run are told apart.
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

// tally is what some endpoints received in a run. Times are in microseconds,
// from when the event was sent to the daemon until it came to the receiver.
type tally struct {
	Attempts  int64 `json:"attempts"`
	Distinct  int64 `json:"distinct"` // events × endpoints that were acknowledged
	Repeats   int64 `json:"repeats"`  // acknowledged deliveries beyond the first
	P50       int64 `json:"p50"`
	P99       int64 `json:"p99"`
	AfterMark int64 `json:"after_mark"` // from the mark until the last first delivery of an event sent before it
	Watched   int64 `json:"watched"`    // from the mark until the last delivery, first or repeated, of an event that is watched
}

func tallyOf(list []*endpoint, latency bool) tally {
	var t tally
	var all []uint32
	for _, e := range list {
		e.mu.Lock()
		t.Attempts += e.attempts.Load()
		t.Distinct += int64(len(e.latencies))
		t.Repeats += e.repeats
		t.AfterMark = max(t.AfterMark, e.afterMark)
		t.Watched = max(t.Watched, e.late)
		if latency {
			all = append(all, e.latencies...)
		}
		e.mu.Unlock()
	}
	slices.Sort(all)
	t.P50, t.P99 = int64(quantile(all, 0.50)), int64(quantile(all, 0.99))
	return t
}
