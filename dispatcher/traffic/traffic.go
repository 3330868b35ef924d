// Package traffic counts accepted events and delivery attempts for charts: by minute for three
// hours and by hour for seven days, for each company, for each subscriber with traffic, and in
// total. Metrics have a longer history. Counts are gathered in memory and written every 10 s. A
// crash, an unavailable Redis or an overload loses counts, but never delays a delivery.
package traffic

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pause"
)

// Attempt is one delivery attempt to be counted.
type Attempt struct {
	Company, Subscriber uuid.UUID
	StatusCode          int // 0: no answer
	Success             bool
	Dead                bool // the delivery is dead after it
	Duration            time.Duration
}

// Series has the counts over time, the oldest first.
type Series struct {
	Minutes []Point // 180; the last minute has not ended
	Hours   []Point // 168; the last hour has not ended
}

// Point is the counts of a minute or an hour. Counts up to 8,191 are exact, larger ones to one part
// in 4,096.
type Point struct {
	At        time.Time // the beginning of the minute or hour
	Delivered int64     // attempts that succeeded
	Failed    int64     // attempts that failed

	// Only of a company or in total.
	Accepted int64 // events
	Dead     int64 // deliveries that became DEAD
	Pending  int64 // pending events at the end, or the last known number

	// Only of a subscriber.
	Refused    int64         // attempts answered 3xx or 4xx
	Erred      int64         // attempts answered 5xx, or not in HTTP
	Unanswered int64         // attempts without an answer
	P50, P95   time.Duration // of the attempts, estimated; 0 without attempts
}

// Attempts is the number of attempts, succeeded and failed.
func (p Point) Attempts() int64 { return p.Delivered + p.Failed }

// Sum adds points up; its latencies are the means, weighted by attempts.
func Sum(points []Point) (sum Point) {
	var p50, p95 float64
	for _, p := range points {
		sum.Accepted += p.Accepted
		sum.Delivered += p.Delivered
		sum.Failed += p.Failed
		sum.Refused += p.Refused
		sum.Erred += p.Erred
		sum.Unanswered += p.Unanswered
		sum.Dead += p.Dead
		sum.Pending = p.Pending
		p50 += float64(p.P50) * float64(p.Attempts())
		p95 += float64(p.P95) * float64(p.Attempts())
	}
	if n := float64(sum.Attempts()); n > 0 {
		sum.P50, sum.P95 = time.Duration(p50/n), time.Duration(p95/n)
	}
	return sum
}

// Ranked is a subscriber with traffic in this hour or the one before.
type Ranked struct {
	Company, Subscriber uuid.UUID
	Failed              int64         // attempts, in both hours
	P95                 time.Duration // of the latest seconds with attempts in an hour; the higher one of both hours
}

// A latency is stored in one byte. Each code means a latency 4 % longer than the one before.
const stepsPerDoubling = 16

func latencyCode(d time.Duration) int {
	return min(255, int(math.Round(stepsPerDoubling*math.Log2(1+float64(d)/float64(time.Millisecond)))))
}

func latencyOf(code byte) time.Duration {
	return time.Duration((math.Exp2(float64(code)/stepsPerDoubling) - 1) * float64(time.Millisecond))
}

// decodeCount reads a count as lua/add.lua encodes it.
func decodeCount(code uint16) int64 {
	exponent, rest := code>>12, int64(code&4095)
	if exponent == 0 {
		return rest
	}
	return (4096 + rest) << (exponent - 1)
}

const (
	// writeEvery is how often the gathered counts are written.
	writeEvery = 10 * time.Second
	// maxGathered bounds the subscribers, and the companies, that are counted between two
	// writes, to some MB. A company may have at most as many subscribers as are left free.
	maxGathered = 20_000
	// latencySteps is the number of latency buckets of the gathered counts.
	latencySteps = 64
)

// Counter gathers counts and writes them. Its methods are safe for concurrent use, and
// all but Run return at once.
type Counter struct {
	store   *Store
	pending func(context.Context) (int64, error) // counts the pending events of all companies

	mu          sync.Mutex
	companies   map[uuid.UUID]*gathered
	subscribers int
}

type gathered struct {
	n           [4]int64 // accepted, delivered, failed, dead
	subscribers map[uuid.UUID]*counts
}

type counts struct {
	n         [4]int64 // delivered, refused, erred, unanswered
	latencies [latencySteps]uint32
}

// NewCounter returns a Counter; call Run. pending counts the pending events of all companies.
func NewCounter(store *Store, pending func(context.Context) (int64, error)) *Counter {
	return &Counter{store: store, pending: pending, companies: map[uuid.UUID]*gathered{}}
}

// Accepted counts events of a company.
func (c *Counter) Accepted(company uuid.UUID, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.of(company); g != nil {
		g.n[0] += int64(n)
	}
}

// Attempted counts an attempt.
func (c *Counter) Attempted(a Attempt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.of(a.Company)
	if g == nil {
		return
	}
	if a.Success {
		g.n[1]++
	} else {
		g.n[2]++
	}
	if a.Dead {
		g.n[3]++
	}
	s := g.subscribers[a.Subscriber]
	if s == nil {
		if len(g.subscribers) >= maxGathered-c.subscribers {
			return
		}
		s = &counts{}
		g.subscribers[a.Subscriber] = s
		c.subscribers++
	}
	s.add(a)
}

// of returns the gathered counts of a company; nil when too many companies have counts.
func (c *Counter) of(company uuid.UUID) *gathered {
	g := c.companies[company]
	if g == nil {
		if len(c.companies) >= maxGathered {
			return nil
		}
		g = &gathered{subscribers: map[uuid.UUID]*counts{}}
		c.companies[company] = g
	}
	return g
}

func (s *counts) add(a Attempt) {
	kind := 2 // erred
	switch {
	case a.Success:
		kind = 0
	case a.StatusCode == 0:
		kind = 3
	case a.StatusCode >= http.StatusMultipleChoices && a.StatusCode < http.StatusInternalServerError:
		kind = 1
	}
	s.n[kind]++
	s.latencies[latencyCode(a.Duration)*latencySteps/256]++
}

func (s *counts) failed() int64 { return s.n[1] + s.n[2] + s.n[3] }

// latency is the encoded latency that a part (0..1) of the attempts did not exceed.
func (s *counts) latency(part float64) int {
	all := float64(s.n[0] + s.failed())
	passed := 0.0
	for i, n := range s.latencies {
		if n > 0 && passed+float64(n) >= part*all {
			within := (part*all - passed) / float64(n)
			return int((float64(i) + within) * 256 / latencySteps)
		}
		passed += float64(n)
	}
	return 255
}

// Run writes the gathered counts every writeEvery, and once more when ctx has ended.
func (c *Counter) Run(ctx context.Context) {
	for pause.For(ctx, writeEvery) {
		_ = c.write(ctx) // counts that Redis does not take are lost
	}
	_ = c.write(context.WithoutCancel(ctx))
}

func (c *Counter) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeEvery)
	defer cancel()
	c.mu.Lock()
	all := c.companies
	c.companies, c.subscribers = map[uuid.UUID]*gathered{}, 0
	c.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	pending, err := c.pending(ctx)
	if err != nil {
		pending = -1
	}
	return c.store.add(ctx, all, pending)
}
