package events_test

import (
	"fmt"
	"spendhook/internal/partition"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
	"spendhook/internal/redistest"
)

// sizedEvent has a body of 512 bytes.
func sizedEvent(id string) events.Event {
	e := newEvent(id)
	body, _ := e.Body()
	e.Metadata = jsontext.Value(`{"note":"` + strings.Repeat("n", 512-len(body)-len(`"note":""`)) + `"}`)
	return e
}

// Group commit against one commit per event, by 64 callers and by one.
func BenchmarkAccept(b *testing.B) {
	for _, bench := range []struct {
		name              string
		callers, maxBatch int
		committers        int
	}{
		{"one caller", 1, 0, 0},
		{"64 callers, group commit", 64, 0, 0},
		{"64 callers, 1 committer", 64, 0, 1},
		{"64 callers, 4 committers", 64, 0, 4},
		{"64 callers, one by one", 64, 1, 1},
		{"64 callers, one by one, 64 committers", 64, 1, 64},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bundle := setupOn(b, redistest.Start(b, redistest.Options{AOF: true, Args: []string{"--appendfsync", "everysec"}}).Client(), func(o *events.PublisherOptions) {
				o.MaxBatch, o.Committers = bench.maxBatch, bench.committers
			})
			var n atomic.Int64
			b.SetParallelism(max(1, bench.callers/2)) // of 2 CPUs here
			b.ResetTimer()
			if bench.callers == 1 {
				for b.Loop() {
					bundle.mustAccept(b, sizedEvent(strconv.FormatInt(n.Add(1), 10)))
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						bundle.mustAccept(b, sizedEvent(strconv.FormatInt(n.Add(1), 10)))
					}
				})
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// Arrays of 1,000.
func BenchmarkAcceptArray(b *testing.B) {
	bundle := setupOn(b, redistest.Start(b, redistest.Options{AOF: true, Args: []string{"--appendfsync", "everysec"}}).Client(), func(*events.PublisherOptions) {})
	n := 0
	for b.Loop() {
		batch := make([]events.Event, 1000)
		for i := range batch {
			n++
			batch[i] = sizedEvent(strconv.Itoa(n))
		}
		bundle.mustAccept(b, batch...)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

func (b *bundle) mustAccept(tb testing.TB, batch ...events.Event) {
	tb.Helper()
	results, err := b.publisher.Accept(tb.Context(), batch)
	if err != nil || results[0].Status != events.Accepted {
		tb.Errorf("accept: %+v, %v", results, err)
	}
}

// A deep page costs what a shallow one costs.
func BenchmarkListPage(b *testing.B) {
	const total = 200_000
	bundle := setup(b)
	bundle.fill(b, total, func(i int) bool { return i%1000 < 50 })
	for _, depth := range []int{0, total / 2, total - 1000} {
		b.Run(fmt.Sprintf("after %d", depth), func(b *testing.B) {
			to := noon.Add(-time.Duration(depth/7) * time.Millisecond)
			first, err := bundle.store.List(b.Context(), events.Filter{Company: &company, To: &to})
			if err != nil {
				b.Fatal(err)
			}
			f := events.Filter{Company: &company, To: &to, Cursor: first.Next}
			for b.Loop() {
				if _, err := bundle.store.List(b.Context(), f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Redis memory is the budget: what an event costs while it is pending and, once
// it is dispatched, for as long as it is kept.
func TestMemoryPerEvent(t *testing.T) {
	t.Parallel()
	_, b := breakable(t, redistest.Options{})
	const count = 10_000
	empty := b.usedMemory(t)
	for batch := range count / 1000 {
		var all []events.Event
		for i := range 1000 {
			all = append(all, sizedEvent(fmt.Sprintf("evt_%020d", batch*1000+i)))
		}
		b.mustAccept(t, all...)
	}
	pending := (b.usedMemory(t) - empty) / count
	b.redis.Del(t.Context(), events.OpenKey(partition.Of(company)))
	kept := (b.usedMemory(t) - empty) / count
	t.Logf("a body of 512 bytes takes %d bytes of Redis while pending, %d bytes kept", pending, kept)
	if pending > 1250 || kept > 1050 {
		t.Errorf("%d bytes pending and %d kept, of a body of 512: who made events bigger?", pending, kept)
	}
}

func (b *bundle) usedMemory(t *testing.T) int {
	t.Helper()
	info, err := b.redis.InfoMap(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.Atoi(info["Memory"]["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	return used
}
