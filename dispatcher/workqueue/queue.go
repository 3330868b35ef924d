// Package workqueue is the owner's side of the log: it reads what companies have waiting in the partitions that this
// replica owns, and starts it. It does not decode records.
//
// A company's events are a log, which one cursor moves over. What was attempted, or must wait, is in the retry set of
// its endpoint. Whose turn it is, and what may start, package schedule decides in memory; Redis has what a next owner
// needs. A wake-up is a message or an asynq task that names partitions about which their owner was told something, and
// nothing else: a lost wake-up delays work by a moment, and loses none.
package workqueue

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/owner"
	"spendhook/internal/pacedlog"
	"spendhook/internal/partition"
)

// Admission decides how much of a replica's memory each company may hold.
type Admission interface {
	// Holding returns how many deliveries each company with deliveries in memory may
	// start, and how many any other company may start.
	Holding() (shares map[uuid.UUID]int, others int)
	// Skipped notes that a company got no turn because it had no places left. It reports whether the company has
	// places again.
	Skipped(company uuid.UUID) bool
	// Free returns how many deliveries a company may start.
	Free(company uuid.UUID) int
	// MayStart and Learned are as in schedule.Options.
	MayStart(company, endpoint uuid.UUID) (int, time.Time)
	Learned(company, endpoint uuid.UUID, fails int, wait time.Duration)
}

// Options configures a Queue.
type Options struct {
	Client    redis.UniversalClient
	Replica   string // unique name of this process; it should survive a restart
	Admission Admission
	// Take starts the work of batches. It may be called concurrently and must not wait for receivers.
	Take func(ctx context.Context, batches []Batch)

	AttemptTimeout time.Duration // longest time of an attempt; default 15 s
	HeartbeatEvery time.Duration // default 500 ms
	LookEvery      time.Duration // how often the owned partitions are looked at; default 250 ms

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, 15*time.Second)
	o.LookEvery = cmp.Or(o.LookEvery, 250*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Queue is one replica's side of the work queue. Make it with New, call Start
// once, then Leave and Release in this order. Its other methods are safe
// for concurrent use.
type Queue struct {
	opts    Options
	owner   *owner.Owner
	metrics *metrics
	skipped *lru.Cache[uuid.UUID, time.Time] // when a company was last left out because of its share
	failed  *pacedlog.Problems               // turns that failed
	wakeups

	mu      sync.Mutex // guards all below, and the shards
	started bool       // work may begin
	shards  map[string]*shard
	owned   map[int]*owned    // loaded partitions
	given   map[string]*given // by token
	early   early
	unsure  map[uuid.UUID]unsure // companies whose log is to be read again
	unwoken map[int]bool         // partitions whose owners are to be woken
	waking  bool                 // owners are being woken

	calls    atomic.Uint64 // number of the last call of turn.lua
	accepted atomic.Int64  // deliveries of accepted events that were started, and hold no places yet
	full     atomic.Bool   // work waits until this replica has places

	serving     sync.WaitGroup
	background  sync.WaitGroup
	ctx         context.Context //nolint:containedctx // Leave ends it: nothing more begins
	cancel      context.CancelFunc
	turnCtx     context.Context //nolint:containedctx // ends when running turns are cancelled
	cancelTurns context.CancelFunc
	looks       context.Context //nolint:containedctx // Release ends it: no more looks
	endLooks    context.CancelFunc
}

// maxSkipped is how many of the companies that were left out are remembered.
const maxSkipped = 1 << 16

// New returns a queue. It takes no wake-ups and begins nothing before Start.
func New(o Options) *Queue {
	o = o.withDefaults()
	q := &Queue{
		opts: o, shards: make(map[string]*shard), owned: make(map[int]*owned), given: make(map[string]*given), early: make(early),
		unsure: make(map[uuid.UUID]unsure), unwoken: make(map[int]bool), failed: pacedlog.New(o.Logger, slog.LevelError, "turn failed"),
	}
	q.skipped, _ = lru.New[uuid.UUID, time.Time](maxSkipped) // fails only for a size < 1
	q.metrics = newMetrics(o.Registerer, q)
	q.wakeups = newWakeups(o)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.turnCtx, q.cancelTurns = context.WithCancel(context.Background()) //nolint:gosec // Leave ends it
	q.looks, q.endLooks = context.WithCancel(context.Background())
	q.owner = owner.New(owner.Options{
		Client: o.Client, Replica: o.Replica, Every: o.HeartbeatEvery, Logger: o.Logger, Registerer: o.Registerer,
		Changed: q.changed, Gone: q.deleteQueue, Giving: q.giving,
	})
	return q
}

// changed looks at the partitions that this replica has taken, and wakes the owners of those that it has given away.
func (q *Queue) changed(partitions []int) { q.Wake(q.turnCtx, partitions) }

// now is this replica's clock. It measures intervals only: what Redis keeps is by Redis's clock.
func (q *Queue) now() time.Time { return time.Now() } //nolint:forbidigo // as above

// Start begins to serve the partitions that this replica owns. Leave and Release must follow, also after an
// error.
func (q *Queue) Start(ctx context.Context) error {
	if err := q.owner.Start(ctx); err != nil {
		return err
	}
	q.locked(func() {
		q.started = true
		q.beginAll()
	})
	q.background.Go(func() { q.runLooks(q.looks) })
	return q.takeWakeups()
}

// Leave gives all partitions away, and returns when no turn is running. When ctx ends, it cancels
// the turns that Redis has not answered.
func (q *Queue) Leave(ctx context.Context) {
	stopping := false
	q.locked(func() { // nothing begins from here on
		stopping = q.ctx.Err() != nil
		q.cancel()
	})
	if stopping {
		return
	}
	defer context.AfterFunc(ctx, q.cancelTurns)()
	stopped := make(chan struct{})
	q.background.Go(func() {
		q.stopWakeups()
		close(stopped)
	})
	if err := q.owner.Leave(ctx); err != nil { // the other replicas take them a moment later
		q.opts.Logger.Warn("partitions not given away", "exception.message", err)
	}
	q.serving.Wait()
	select {
	case <-stopped:
	case <-ctx.Done(): // asynq waits for Redis: it may take wake-ups, which nothing serves
	}
}

// Release leaves all work that this replica has begun and not finished to the next owners, and removes its
// heartbeat. It returns when nothing uses Redis any more, except that asynq may continue after ctx while Redis hangs.
// Call Release after Leave, once all outcomes are recorded.
func (q *Queue) Release(ctx context.Context) error {
	q.endLooks()
	q.background.Wait()
	err := errors.Join(q.owner.Give(ctx, partition.All()), q.release(ctx)) // gives, in case that Redis did not answer before
	q.deleteQueue(q.opts.Replica)
	return errors.Join(err, q.owner.Close(ctx))
}

// Owned lists the partitions that this replica owns.
func (q *Queue) Owned() []int { return q.owner.Owned() }

// Refused returns the *partition.FormatError that made this replica stop serving; nil
// while the replica can read the stored format.
func (q *Queue) Refused() error { return q.owner.Refused() }

// locked calls f while it holds Queue.mu.
func (q *Queue) locked(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}
