// Package publish accepts each event id exactly once. One script stores the event together
// with its place in the log of its company, so an accepted event is durable.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/layout"
	"spendhook/internal/clock"
	"spendhook/internal/invalid"
	"spendhook/internal/partition"
)

var (
	// ErrConflict means that the id is known with other content.
	ErrConflict = errors.New("event id is already known with different content")
	// ErrBacklogFull means that the company has reached its limit of pending events.
	ErrBacklogFull = errors.New("the company has too many pending events")
	// ErrStorageFull means that Redis has no memory left for new events of the
	// company: the company's events take more than is free, or nothing is free.
	ErrStorageFull = errors.New("no memory is left for new events of the company")
	// errMemoryFull is the ErrStorageFull of a Redis that has no memory left for
	// new events of any company.
	errMemoryFull = fmt.Errorf("%w: Redis is at its high-water mark", ErrStorageFull)
	// ErrClosed means that the publisher is closed; nothing was accepted.
	ErrClosed = errors.New("event publisher is closed")
)

// CheckEmitted adds a problem for an id or a type that only the daemon itself gives an event.
func CheckEmitted(problems *invalid.Error, e *events.Event) {
	if strings.HasPrefix(e.ID, events.OwnPrefix) {
		problems.Add("id", "RESERVED", "must not begin with %s: such ids belong to this service", events.OwnPrefix)
	}
	if eventtype.Reserved(e.Type) {
		problems.Add("event", "EVENT_TYPE_RESERVED", "is reserved for the operational events of this service")
	}
}

// Status says how an event was answered.
type Status string

// The statuses.
const (
	Accepted  Status = "ACCEPTED"  // new and durable, with its place in the log of its company
	Duplicate Status = "DUPLICATE" // already known with the same content; nothing changes
)

// Result is the answer for one event. Err is nil, an *invalid.Error, ErrConflict,
// ErrBacklogFull or ErrStorageFull. When Err is set, Status is empty.
type Result struct {
	ID     string
	Status Status
	Err    error
}

// Memory decides how many bytes of new events a Redis server may take. It is used
// concurrently.
type Memory interface {
	// Reserve reserves up to n bytes of a server, named as by partition.Shard. It returns
	// the reserved bytes and the bytes that were free before. release returns unused
	// bytes.
	Reserve(ctx context.Context, shard string, n int64) (reserved, free int64, release func(bytes int64))
}

// Owner is this replica as the owner of partitions. It is used concurrently.
type Owner interface {
	// Token is that under which this replica owns the partition of a company; "" when it does not.
	Token(company uuid.UUID) string
	// Accepted has accepted events matched, of companies whose partitions this replica owns. It does not wait.
	Accepted(events []Begun)
	// Unsure is called with companies with accepted events when it is not known whether Redis has them: the
	// answer was lost. It does not wait.
	Unsure(companies []uuid.UUID)
}

// Begun is the events of a company that one call has accepted.
type Begun struct {
	Company uuid.UUID
	Token   string  // that the script found with the partition
	After   float64 // place in the company's log of the event before
	Cursor  float64 // place up to which all events are known to be matched
	Cost    float64 // average number of deliveries of an event
	Version any     // of the company's subscribers, as Redis returns it
	Managed any     // subscribers whose deliveries wait, as Redis returns them
	Events  []BegunEvent
}

// BegunEvent is an accepted event.
type BegunEvent struct {
	ID     string
	Place  float64 // in the company's log
	Number int64   // in the company
	Value  string  // as package events/layout stores it
}

// Options are what a Publisher needs. Client, Retention and Wake are required.
type Options struct {
	Client    redis.UniversalClient
	Retention time.Duration // how long ids are remembered; positive
	Backlog   int           // pending events a company may have; default 1,000,000
	Memory    Memory        // nil: no limit
	Owner     Owner         // nil: the owners of the partitions are told
	// Wake wakes the owners of partitions, which were told of new events. It may be called
	// concurrently. The events are durable even if it fails.
	Wake      func(ctx context.Context, partitions []int)
	Catalogue *eventtype.Catalogue // the types that events may have; nil: any
	// Now is the clock; nil: the real clock, and Redis's for the times of acceptance.
	Now        func() time.Time
	Registerer prometheus.Registerer // nil: not counted
	// Counted is called after the answer with the number of accepted events of a company.
	// It must return at once, and may be nil.
	Counted func(company uuid.UUID, n int)
}

// Publisher accepts events in group commits, separately for each shard.
// Its methods are safe for concurrent use. Close it.
type Publisher struct {
	opts    Options
	clock   func() time.Time // of acceptance; nil: Redis's
	backlog atomic.Int64
	metrics metrics
	refused refusals
	nonce   atomic.Uint32

	committing sync.WaitGroup

	mu     sync.Mutex            // guards all below
	shards map[string]*committer // by address; without those of shards for which no event waits
	closed bool
}

// New returns a publisher that is ready to accept. It does not close the client.
func New(o Options) *Publisher {
	p := &Publisher{metrics: newMetrics(o.Registerer), shards: make(map[string]*committer)}
	p.clock, o.Now = o.Now, clock.Or(o.Now)
	p.opts = o
	promauto.With(o.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_companies_refused",
		Help: "Companies whose events this replica refused within the last minute because they are at their own share of the backlog or of Redis's memory.",
	}, func() float64 { return float64(p.Refused()) })
	p.SetBacklog(cmp.Or(o.Backlog, 1_000_000))
	p.nonce.Store(rand.Uint32()) //nolint:gosec // must differ between replicas, not be secret
	return p
}

// SetBacklog replaces Options.Backlog, even while events are accepted.
func (p *Publisher) SetBacklog(n int) { p.backlog.Store(int64(n)) }

// Accept validates the events and writes the valid ones durably, in order, each
// with its place in the log of its company. Results are in the order of batch; one bad event
// does not fail the others. The error is ErrClosed, or wraps events.ErrUnavailable
// when Redis did not answer before ctx ended. Then some of the events may have been
// accepted; sending all of them again is safe.
func (p *Publisher) Accept(ctx context.Context, batch []events.Event) ([]Result, error) {
	results := make([]Result, len(batch))
	r := &request{entries: make([]*entry, 0, len(batch)), done: make(chan struct{})}
	now := p.opts.Now()
	for i := range batch {
		results[i].ID = batch[i].ID
		e, err := p.prepare(&batch[i], now)
		if err != nil {
			results[i].Err = err
			continue
		}
		e.result = &results[i]
		r.add(e)
	}
	if err := p.send(ctx, r); err != nil {
		p.metrics["unavailable"].Add(float64(len(batch)))
		return nil, err
	}
	p.metrics.count(results)
	for i := range results {
		p.refused.note(batch[i].CompanyUUID, results[i], now)
	}
	return results, nil
}

// prepare validates and encodes one event.
func (p *Publisher) prepare(e *events.Event, now time.Time) (*entry, error) {
	if err := e.Validate(now, p.opts.Retention, p.opts.Catalogue); err != nil {
		return nil, err
	}
	body, err := e.Body()
	if err != nil {
		problem := &invalid.Error{}
		problem.Add("", "INVALID", "has text that is not UTF-8 or metadata that is not JSON")
		return nil, problem
	}
	stored := events.Stored{Event: *e, Body: body}
	return &entry{Ref: stored.Ref(), kept: layout.Encode(&stored), nonce: p.nonce.Add(1)}, nil
}

// send queues r for its commits and waits until r is answered or ctx ends.
func (p *Publisher) send(ctx context.Context, r *request) error {
	if len(r.entries) == 0 {
		return nil
	}
	if err := p.push(ctx, r); err != nil {
		return err
	}
	select {
	case <-r.done:
		return r.err()
	case <-ctx.Done():
		r.abandoned.Store(true)
		return fmt.Errorf("%w: accept events: %w", events.ErrUnavailable, context.Cause(ctx))
	}
}

// push queues the entries of r at the committers of their shards.
func (p *Publisher) push(ctx context.Context, r *request) error {
	groups := make(map[string][]*entry, 1)
	for _, e := range r.entries {
		shard, err := partition.Shard(ctx, p.opts.Client, partition.Of(e.Company))
		if err != nil {
			return fmt.Errorf("%w: accept events: %w", events.ErrUnavailable, err)
		}
		groups[shard] = append(groups[shard], e)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	for shard, entries := range groups {
		c := p.shards[shard]
		if c == nil {
			c = &committer{waiting: make(map[uuid.UUID]*companyQueue)}
			p.shards[shard] = c
			p.committing.Go(func() { p.commitAll(shard) }) //nolint:contextcheck // a commit has the events of several callers
		}
		c.push(entries)
	}
	return nil
}

// Close refuses new events, commits the queued events, and returns when they are
// answered. A second call waits too.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.committing.Wait()
}
