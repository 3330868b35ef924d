package traffic

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/pause"
)

const (
	// writeEvery is how often the gathered counts are written.
	writeEvery = 10 * time.Second
	// maxGathered bounds the subscribers, and the companies, that are counted between
	// two writes: some 3 MB. A company has at most as many of them as are left free.
	maxGathered = 20_000
	// latencySteps is the number of latency buckets of the gathered counts.
	latencySteps = 64
)

// Options configures a Counter; Store is required.
type Options struct {
	Store *Store
	// Pending counts the pending events of all companies. If it is nil or fails, they
	// are not recorded.
	Pending    func(context.Context) (int64, error)
	Registerer prometheus.Registerer // nil: not counted
}

// Counter gathers counts and writes them. Its methods are safe for concurrent use, and
// all but Run return at once.
type Counter struct {
	opts    Options
	dropped prometheus.Counter

	mu          sync.Mutex
	companies   map[uuid.UUID]*gathered
	subscribers int
}

// gathered is what was counted of a company since the last write.
type gathered struct {
	accepted, delivered, failed, dead int64
	subscribers                       map[uuid.UUID]*counts
}

// counts is what was counted of a subscriber since the last write.
type counts struct {
	delivered, refused, erred, silent int64
	latencies                         [latencySteps]uint32
}

// NewCounter returns a Counter; call Run.
func NewCounter(o Options) *Counter {
	return &Counter{opts: o, companies: map[uuid.UUID]*gathered{}, dropped: promauto.With(o.Registerer).NewCounter(prometheus.CounterOpts{
		Name: "spendhook_traffic_dropped_total",
		Help: "Counts for the console's charts that were dropped, because too many subscribers had traffic or Redis did not take them.",
	})}
}

// Accepted counts events of a company.
func (c *Counter) Accepted(company uuid.UUID, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.of(company); g != nil {
		g.accepted += int64(n)
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
		g.delivered++
	} else {
		g.failed++
	}
	if a.Dead {
		g.dead++
	}
	s := g.subscribers[a.Subscriber]
	if s == nil {
		if len(g.subscribers) >= maxGathered-c.subscribers {
			c.dropped.Inc()
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
			c.dropped.Inc()
			return nil
		}
		g = &gathered{subscribers: map[uuid.UUID]*counts{}}
		c.companies[company] = g
	}
	return g
}

func (s *counts) add(a Attempt) {
	switch {
	case a.Success:
		s.delivered++
	case a.StatusCode == 0:
		s.silent++
	case a.StatusCode >= http.StatusMultipleChoices && a.StatusCode < http.StatusInternalServerError:
		s.refused++
	default:
		s.erred++
	}
	s.latencies[latencyCode(a.Duration)*latencySteps/256]++
}

func (s *counts) failed() int64 { return s.refused + s.erred + s.silent }

// latency is the encoded latency that a part (0..1) of the attempts did not exceed.
func (s *counts) latency(part float64) int {
	all := float64(s.delivered + s.failed())
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

// Run writes what was gathered every 10 s, and once more when ctx has ended.
func (c *Counter) Run(ctx context.Context) {
	for pause.For(ctx, writeEvery) {
		c.write(ctx)
	}
	c.write(context.WithoutCancel(ctx))
}

// write writes what was gathered, within the time until the next write.
func (c *Counter) write(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeEvery)
	defer cancel()
	c.mu.Lock()
	all, subscribers := c.companies, c.subscribers
	c.companies, c.subscribers = map[uuid.UUID]*gathered{}, 0
	c.mu.Unlock()
	if len(all) == 0 {
		return
	}
	pending := int64(-1)
	if c.opts.Pending != nil {
		if n, err := c.opts.Pending(ctx); err == nil {
			pending = n
		}
	}
	lost := c.opts.Store.add(ctx, all, pending)
	c.dropped.Add(float64(min(lost, len(all)+subscribers+1)))
}
