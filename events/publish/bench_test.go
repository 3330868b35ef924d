package publish_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// sizedEvent has a body of 512 bytes.
func sizedEvent(id string) events.Event {
	e := newEvent(id)
	body, _ := e.Body()
	e.Metadata = jsontext.Value(`{"note":"` + strings.Repeat("n", 512-len(body)-len(`"note":""`)) + `"}`)
	return e
}

// Group commit by 64 callers, and one caller.
func BenchmarkAccept(b *testing.B) {
	for _, bench := range []struct {
		name    string
		callers int
	}{
		{"one caller", 1},
		{"64 callers, group commit", 64},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bundle := setupOn(b, redistest.Start(b, redistest.Options{AOF: true, Args: []string{"--appendfsync", "everysec"}}).Client(), func(o *options) {
				o.Backlog = math.MaxInt32
			})
			var n atomic.Int64
			b.SetParallelism(max(1, bench.callers/2)) // of 2 CPUs here
			before := redistest.UsedCPU(b, bundle.Redis)
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
			b.ReportMetric((redistest.UsedCPU(b, bundle.Redis)-before)*1e6/float64(b.N), "redis-µs/event")
		})
	}
}

// Arrays of 1,000.
func BenchmarkAcceptArray(b *testing.B) {
	bundle := setupOn(b, redistest.Start(b, redistest.Options{AOF: true, Args: []string{"--appendfsync", "everysec"}}).Client(), func(o *options) { o.Backlog = math.MaxInt32 })
	n := 0
	before := redistest.UsedCPU(b, bundle.Redis)
	for b.Loop() {
		batch := make([]events.Event, 1000)
		for i := range batch {
			n++
			batch[i] = sizedEvent(strconv.Itoa(n))
		}
		bundle.mustAccept(b, batch...)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric((redistest.UsedCPU(b, bundle.Redis)-before)*1e6/float64(n), "redis-µs/event")
}

// Each event belongs to another company, so no per-company work is shared.
func BenchmarkAcceptOfManyCompanies(b *testing.B) {
	bundle := setupOn(b, redistest.Start(b, redistest.Options{}).Client(), func(o *options) { o.Backlog = math.MaxInt32 })
	n := 0
	before := redistest.UsedCPU(b, bundle.Redis)
	for b.Loop() {
		batch := make([]events.Event, 1000)
		for i := range batch {
			n++
			batch[i] = sizedEvent(strconv.Itoa(n))
			batch[i].CompanyUUID = uuid.UUID{byte(i), byte(i >> 8), 1}
		}
		bundle.mustAccept(b, batch...)
	}
	b.ReportMetric((redistest.UsedCPU(b, bundle.Redis)-before)*1e6/float64(n), "redis-µs/event")
}

func (b *bundle) mustAccept(tb testing.TB, batch ...events.Event) {
	tb.Helper()
	results, err := b.Publisher.Accept(tb.Context(), batch)
	if err != nil || results[0].Status != publish.Accepted {
		tb.Errorf("accept %d events: %+v, %v", len(batch), results[:min(1, len(results))], err)
	}
}

// The Redis memory of a pending event, with its entries in the index and in the ready queue, is
// bounded.
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
	b.Redis.Del(t.Context(), partition.Key(company, "active"), partition.Key(company, "told"))
	kept := (b.usedMemory(t) - empty) / count
	t.Logf("a body of 512 bytes takes %d bytes of Redis while pending, %d bytes kept", pending, kept)
	if pending > 950 {
		t.Errorf("%d bytes pending and %d kept, of a body of 512: events take more memory than allowed", pending, kept)
	}
}

func (b *bundle) usedMemory(t *testing.T) int {
	t.Helper()
	info, err := b.Redis.InfoMap(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.Atoi(info["Memory"]["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	return used
}
