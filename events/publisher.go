package events

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"spendhook/internal/invalid"
)

var (
	// ErrConflict means that the id is known with other content.
	ErrConflict = errors.New("event id is already known with different content")
	// ErrClosed means that the publisher is stopping; nothing was accepted.
	ErrClosed = errors.New("event publisher is closed")
)

// Status says what became of an event.
type Status string

// Accepted is a new event, durable with its pending dispatch; Duplicate is one
// already known with the same content, for which nothing is done.
const (
	Accepted  Status = "ACCEPTED"
	Duplicate Status = "DUPLICATE"
)

// Result is the answer for one event. Err is nil, an *invalid.Error or
// ErrConflict; Status is empty when it is set.
type Result struct {
	ID     string
	Status Status
	Err    error
}

// PublisherOptions are what a Publisher needs. Store and Enqueue are required.
type PublisherOptions struct {
	Store *Store
	// Enqueue queues the dispatch of events that were just accepted; it may be
	// called from several goroutines, and must not change the events. When it
	// fails they are still accepted: the sweeper finds them in the open set.
	Enqueue func(context.Context, []*Stored) error
	// Limits bounds the events. Its Retention is taken from Store, and its
	// MaxFuture, 0 meaning 5 minutes, is at most that: an id must not outlive
	// its key.
	Limits     Limits
	Now        func() time.Time // nil: the real clock
	MaxBatch   int              // events a commit gathers; default 512
	Committers int              // commits at a time; default 2
	Logger     *slog.Logger     // nil: discard
	Metrics    *Metrics         // nil: not counted
}

func (o PublisherOptions) withDefaults() PublisherOptions {
	o.Limits.Retention = o.Store.retention
	if o.Limits.MaxFuture <= 0 || o.Limits.MaxFuture > maxFuture {
		o.Limits.MaxFuture = maxFuture
	}
	if o.Limits.MaxMetadata <= 0 {
		o.Limits.MaxMetadata = defaultMaxMetadata
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the nil default
	}
	if o.MaxBatch <= 0 {
		o.MaxBatch = 512
	}
	if o.Committers <= 0 {
		o.Committers = 2
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	return o
}

// Publisher accepts events in group commits: while one is under way, what
// comes in queues up and makes the next. Its methods are safe for concurrent
// use. Close it.
type Publisher struct {
	opts  PublisherOptions
	nonce atomic.Uint32

	queue      chan *unit
	closing    chan struct{}
	committers sync.WaitGroup
	closeOnce  sync.Once
	mu         sync.RWMutex // held for reading while sending to queue
	closed     bool         // queue is closed
}

// NewPublisher starts the committers.
func NewPublisher(o PublisherOptions) *Publisher {
	o = o.withDefaults()
	p := &Publisher{opts: o, queue: make(chan *unit, o.MaxBatch), closing: make(chan struct{})}
	p.nonce.Store(rand.Uint32()) //nolint:gosec // must differ between replicas, not be secret
	for range o.Committers {
		p.committers.Go(p.commitAll)
	}
	return p
}

// Accept validates the events and writes the valid ones durably, in order, each
// with its pending dispatch. Results are in the order of batch; one bad event
// does not fail the others. The error is ErrClosed, or wraps ErrUnavailable
// when Redis did not answer before ctx ended: then any of the events may have been
// accepted, and sending them all again is safe.
func (p *Publisher) Accept(ctx context.Context, batch []Event) ([]Result, error) {
	results := make([]Result, len(batch))
	u := newUnit(len(batch))
	now := p.opts.Now()
	for i := range batch {
		results[i].ID = batch[i].ID
		e, err := p.prepare(&batch[i], now)
		if err != nil {
			results[i].Err = err
			continue
		}
		u.add(e, i)
	}
	if err := p.send(ctx, u); err != nil {
		p.opts.Metrics.unavailable.Add(float64(len(batch)))
		return nil, err
	}
	u.answer(results)
	p.opts.Metrics.count(results)
	return results, nil
}

// prepare validates and encodes one event.
func (p *Publisher) prepare(e *Event, now time.Time) (*entry, error) {
	if err := e.Validate(now, p.opts.Limits); err != nil {
		return nil, err
	}
	body, err := e.Body()
	if err != nil {
		problem := &invalid.Error{}
		problem.Add("", "INVALID", "has text that is not UTF-8 or metadata that is not JSON")
		return nil, problem
	}
	return &entry{Stored: Stored{Event: *e, Body: body}, nonce: p.nonce.Add(1)}, nil
}

// send has u committed and waits for it, or for the end of ctx.
func (p *Publisher) send(ctx context.Context, u *unit) error {
	if len(u.entries) == 0 {
		return nil
	}
	if err := p.push(ctx, u); err != nil {
		return err
	}
	select {
	case <-u.done:
		return u.err()
	case <-ctx.Done():
		u.abandoned.Store(true)
		return unavailable("accept events", context.Cause(ctx))
	}
}

func (p *Publisher) push(ctx context.Context, u *unit) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return ErrClosed
	}
	select {
	case p.queue <- u:
		return nil
	case <-p.closing:
		return ErrClosed
	case <-ctx.Done():
		return unavailable("accept events", context.Cause(ctx))
	}
}

// Close refuses new events, commits those that are queued and returns when
// they are answered. Calling it again waits too.
func (p *Publisher) Close() {
	p.closeOnce.Do(p.stopIntake)
	p.committers.Wait()
}

// stopIntake first turns away who waits for room in the queue, so that the
// lock comes free.
func (p *Publisher) stopIntake() {
	close(p.closing)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	close(p.queue)
}
