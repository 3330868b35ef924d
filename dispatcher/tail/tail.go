// Package tail is the live tail: it shows delivery attempts of all replicas as they are
// recorded. A key that expires lists the companies with viewers; without viewers nothing is
// written. It is not a log: when viewers or Redis are slow, entries are dropped and counted.
package tail

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/pause"
)

// Entry is an attempt.
type Entry struct {
	At         int64     `json:"t"` // when it began, unix ms
	Company    uuid.UUID `json:"c"`
	EventID    string    `json:"i"`
	EventType  string    `json:"e"`
	Subscriber uuid.UUID `json:"s"`
	Name       string    `json:"n"` // of the subscriber
	Number     int       `json:"k"` // of the attempt, from 1
	StatusCode int       `json:"o,omitzero"`
	Error      string    `json:"x,omitempty"` // the class of the failure
	DurationMs int64     `json:"d"`
	Status     string    `json:"z"` // of the delivery, after it
}

// ErrTooMany means that the company, or the replica, has as many viewers as allowed.
var ErrTooMany = errors.New("too many viewers of the live tail")

const (
	// writeEvery is how often watched attempts are written, readEvery how often viewers
	// read them.
	writeEvery = 250 * time.Millisecond
	readEvery  = 500 * time.Millisecond
	// maxWritten bounds the entries of a company that a replica writes at a time.
	maxWritten = 50
	// maxViewers and maxOfCompany bound the viewers of one replica.
	maxViewers   = 64
	maxOfCompany = 8
	// maxWaiting bounds the entries that wait for one viewer.
	maxWaiting = 500
	// refreshEvery is the interval at which a replica publishes its viewers' companies and
	// reads those of others; an entry expires after watchLife.
	refreshEvery = time.Second
	watchLife    = 5 * time.Second
)

// Tail is safe for concurrent use. Call Run; Close ends all views.
type Tail struct {
	client redis.UniversalClient
	logger *slog.Logger

	watched atomic.Pointer[map[uuid.UUID]bool] // at any replica; uuid.Nil: all companies

	mu       sync.Mutex
	gathered map[uuid.UUID]*batch

	viewing  sync.Mutex
	channels map[uuid.UUID]*channel // with viewers at this replica
	viewers  int
	closed   context.Context //nolint:containedctx // ends with Close
	close    context.CancelFunc
	loops    sync.WaitGroup
}

type batch struct {
	Entries []Entry `json:"entries"`
	Dropped int     `json:"dropped,omitzero"`
}

// New returns a Tail on the client, which it does not close.
func New(client redis.UniversalClient, logger *slog.Logger) *Tail {
	t := &Tail{client: client, logger: logger, gathered: map[uuid.UUID]*batch{}, channels: map[uuid.UUID]*channel{}}
	t.closed, t.close = context.WithCancel(context.Background())
	return t
}

// Close ends all views.
func (t *Tail) Close() {
	t.viewing.Lock()
	t.close() // from now on Watch starts no loop
	t.viewing.Unlock()
	t.loops.Wait()
}

// Watched reports whether a company has a viewer.
func (t *Tail) Watched(company uuid.UUID) bool {
	watched := t.watched.Load()
	return watched != nil && ((*watched)[company] || (*watched)[uuid.Nil])
}

// Add shows an attempt to the viewers of its company. It returns at once.
func (t *Tail) Add(e Entry) {
	watched := t.watched.Load()
	if watched == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, of := range []uuid.UUID{e.Company, uuid.Nil} {
		if !(*watched)[of] {
			continue
		}
		b := t.gathered[of]
		if b == nil {
			b = &batch{}
			t.gathered[of] = b
		}
		if len(b.Entries) < maxWritten {
			b.Entries = append(b.Entries, e)
		} else {
			b.Dropped++
		}
	}
}

// Run reads which companies have viewers and writes their attempts, until ctx ends.
func (t *Tail) Run(ctx context.Context) {
	for n := 0; pause.For(ctx, writeEvery); n++ {
		if n%int(refreshEvery/writeEvery) == 0 {
			t.refreshWatched(ctx)
		}
		t.write(ctx)
	}
}

// refreshWatched reads which companies have viewers.
func (t *Tail) refreshWatched(ctx context.Context) {
	watched, err := t.readWatched(ctx)
	if err != nil || len(watched) == 0 {
		t.watched.Store(nil) // viewers miss entries for a moment
		return
	}
	t.watched.Store(&watched)
}

func (t *Tail) write(ctx context.Context) {
	t.mu.Lock()
	if len(t.gathered) == 0 {
		t.mu.Unlock()
		return
	}
	gathered := t.gathered
	t.gathered = map[uuid.UUID]*batch{}
	t.mu.Unlock()
	if err := t.append(ctx, gathered); err != nil && ctx.Err() == nil {
		t.logger.Debug("live tail not written", "exception.message", err)
	}
}

// channel is a company, or all companies, with viewers at this replica.
type channel struct {
	viewers map[*Viewer]bool
	end     context.CancelFunc
}

// Viewer is one open live tail.
type Viewer struct {
	tail  *Tail
	of    uuid.UUID
	keep  func(Entry) bool
	ready chan struct{}

	mu      sync.Mutex
	waiting []Entry
	dropped int
}

// Watch starts a view of a company, or of all companies for nil. The view has the entries for
// which keep returns true. Call Leave at the end. ErrTooMany.
func (t *Tail) Watch(company *uuid.UUID, keep func(Entry) bool) (*Viewer, error) {
	v := &Viewer{tail: t, keep: keep, ready: make(chan struct{}, 1)}
	if company != nil {
		v.of = *company
	}
	t.viewing.Lock()
	defer t.viewing.Unlock()
	c := t.channels[v.of]
	if t.closed.Err() != nil || t.viewers >= maxViewers || c != nil && len(c.viewers) >= maxOfCompany {
		return nil, ErrTooMany
	}
	if c == nil {
		ctx, end := context.WithCancel(t.closed)
		c = &channel{viewers: map[*Viewer]bool{}, end: end}
		t.channels[v.of] = c
		t.loops.Go(func() { t.follow(ctx, v.of, c) })
	}
	c.viewers[v] = true
	t.viewers++
	return v, nil
}

// Leave ends a view.
func (v *Viewer) Leave() {
	t := v.tail
	t.viewing.Lock()
	defer t.viewing.Unlock()
	c := t.channels[v.of]
	if c == nil || !c.viewers[v] {
		return
	}
	delete(c.viewers, v)
	t.viewers--
	if len(c.viewers) == 0 {
		c.end()
		delete(t.channels, v.of)
	}
}

// Next waits for entries, and returns them with how many were dropped since the last
// call. The error is that of ctx, or context.Canceled once the Tail is closed.
func (v *Viewer) Next(ctx context.Context) (entries []Entry, dropped int, err error) {
	select {
	case <-v.ready:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case <-v.tail.closed.Done():
		return nil, 0, context.Canceled
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	entries, dropped = v.waiting, v.dropped
	v.waiting, v.dropped = nil, 0
	return entries, dropped, nil
}

func (v *Viewer) offer(b batch) {
	v.mu.Lock()
	v.dropped += b.Dropped
	for _, e := range b.Entries {
		switch {
		case !v.keep(e):
		case len(v.waiting) < maxWaiting:
			v.waiting = append(v.waiting, e)
		default:
			v.dropped++
		}
	}
	some := len(v.waiting) > 0 || v.dropped > 0
	v.mu.Unlock()
	if some {
		select {
		case v.ready <- struct{}{}:
		default:
		}
	}
}

// follow publishes that this replica has viewers, and passes them the entries of all replicas.
func (t *Tail) follow(ctx context.Context, of uuid.UUID, c *channel) {
	last := ""
	for n := 0; ; n++ {
		if n%int(refreshEvery/readEvery) == 0 {
			t.announce(ctx, of)
		}
		batches, at, err := t.readAfter(ctx, of, last)
		if err == nil {
			last = at
		}
		t.viewing.Lock()
		for v := range c.viewers {
			for _, b := range batches {
				v.offer(b)
			}
		}
		t.viewing.Unlock()
		if !pause.For(ctx, readEvery) {
			return
		}
	}
}
