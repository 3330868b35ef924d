// Package workqueue claims the work of all companies for replicas: events of ready
// queues, deliveries of endpoint queues, and jobs. It does not decode their records.
//
// Work is in exactly one place: a ready queue, an endpoint queue, a job list, the note
// of one replica, or the quarantine, and every move is one script. Companies are served in turn
// (start-time fair queueing), so none waits behind another's backlog. A wake-up
// is an asynq task that names partitions with work, and nothing else: a lost wake-up
// delays work by a moment, and loses none.
package workqueue

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/pacedlog"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

// Admission decides how much of a replica's memory each company may hold.
type Admission interface {
	// Holding returns how many deliveries each company with deliveries in memory may
	// claim, and how many any other company may claim.
	Holding() (shares map[uuid.UUID]int, others int)
	// Skipped notes that a claim skipped a company because the company had no places
	// left. It reports whether the company has places again.
	Skipped(company uuid.UUID) bool
	// Free returns how many deliveries a company may claim.
	Free(company uuid.UUID) int
}

// Options configures a Queue.
type Options struct {
	Client    redis.UniversalClient
	Replica   string // unique name of this process; it should survive a restart
	Admission Admission
	// Take starts the work of batches that were claimed under the id replica.
	// It may be called concurrently and must not wait for receivers.
	Take func(ctx context.Context, replica string, batches []Batch)

	// Required, for endpoint queues.
	EndpointLimit   int           // deliveries of a queue in flight, over all replicas
	HostLimit       int           // deliveries in flight of all queues of a company on one host
	BreakerFailures int           // unreachable attempts in a row that open the breaker of a queue
	AttemptTimeout  time.Duration // longest time of an attempt; default 15 s

	HeartbeatEvery time.Duration // default 500 ms
	ServiceEvery   time.Duration // how often owned partitions are checked for due work, and lost claims recovered; default 250 ms

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, 15*time.Second)
	o.HeartbeatEvery = cmp.Or(o.HeartbeatEvery, 500*time.Millisecond)
	o.ServiceEvery = cmp.Or(o.ServiceEvery, 250*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Queue is one replica's side of the work queue. Make it with New, call Start
// once, then StopClaiming and Release in this order. Its other methods are safe
// for concurrent use.
type Queue struct {
	opts    Options
	metrics *metrics
	skipped *lru.Cache[uuid.UUID, time.Time] // when a claim last skipped a company
	wakeups
	replica atomic.Pointer[string]                // the replica id that claims are noted under
	refused atomic.Pointer[partition.FormatError] // why the replica stopped claiming; nil: it has not
	failed  *pacedlog.Problems                    // claims that failed

	mu      sync.Mutex // guards this group and the next, and the shards
	started bool       // queued partitions may be served
	shards  map[string]*shard
	unwoken map[int]bool // partitions that the next wake-up names
	waking  bool         // wake-ups are being enqueued

	lost []lostClaim // claims that are to be recovered

	calls         atomic.Uint64 // number of the last claim
	underway      atomic.Int64  // claims
	accepted      atomic.Int64  // deliveries that were claimed when they were accepted, and hold no places yet
	full          atomic.Bool   // partitions are queued until this replica has places
	lastPartition atomic.Int64  // the partition served last
	othersUntil   atomic.Int64  // unix ms until which other partitions count as having work

	claiming      sync.WaitGroup
	background    sync.WaitGroup
	ctx           context.Context //nolint:containedctx // StopClaiming ends it: no more claims start
	cancel        context.CancelFunc
	claimCtx      context.Context //nolint:containedctx // ends when running claims are cancelled
	cancelClaims  context.CancelFunc
	heartbeats    context.Context //nolint:containedctx // Release ends it: no more heartbeats
	endHeartbeats context.CancelFunc
}

// maxSkipped is how many of the companies that claims skipped are remembered.
const maxSkipped = 1 << 16

// New returns a queue. It takes no wake-ups and claims nothing before Start.
func New(o Options) *Queue {
	o = o.withDefaults()
	q := &Queue{
		opts: o, shards: make(map[string]*shard), unwoken: make(map[int]bool), failed: pacedlog.New(o.Logger, slog.LevelError, "claim failed"),
	}
	q.skipped, _ = lru.New[uuid.UUID, time.Time](maxSkipped) // fails only for a size < 1
	q.metrics = newMetrics(o.Registerer, q)
	q.wakeups = newWakeups(o, q.full.Load)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.claimCtx, q.cancelClaims = context.WithCancel(context.Background()) //nolint:gosec // StopClaiming ends it
	q.heartbeats, q.endHeartbeats = context.WithCancel(context.Background())
	q.rename()
	return q
}

// rename takes a new replica id. The part before the last dot stays, so that a restarted
// process recognises the ids of its former runs.
func (q *Queue) rename() {
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	q.replica.Store(new(q.opts.Replica + "." + hex.EncodeToString(random)))
}

// Start requeues what former runs of this replica had in flight and begins to
// claim. StopClaiming and Release must follow, also after an error.
func (q *Queue) Start(ctx context.Context) error {
	if err := q.beginShards(ctx); err != nil {
		return err
	}
	q.background.Go(func() { q.runTicks(q.heartbeats) })
	q.locked(func() {
		q.started = true
		q.beginAll()
	})
	if err := q.takeWakeups(); err != nil {
		return err
	}
	if q.Refused() != nil { // stopIfRefused may have called Stop before the server started
		q.server.Stop()
	}
	return nil
}

// StopClaiming prevents further claims, and returns when none is running. When ctx ends, it cancels the
// claims that Redis has not answered; Release requeues their work. In the background it wakes other
// replicas for the partitions that this replica had queued.
func (q *Queue) StopClaiming(ctx context.Context) {
	stopping := false
	q.locked(func() { // no claim begins from here on
		stopping = q.ctx.Err() != nil
		q.cancel()
	})
	if stopping {
		return
	}
	defer context.AfterFunc(ctx, q.cancelClaims)()
	stopped := make(chan struct{})
	q.background.Go(func() {
		q.server.Shutdown()
		q.enqueuing.Wait()
		close(stopped)
		q.claiming.Wait()
		q.handOver(ctx) // after Shutdown: this replica takes no wake-up any more
	})
	select {
	case <-stopped:
	case <-ctx.Done(): // asynq waits for Redis: it may take wake-ups, which nothing serves
	}
	q.claiming.Wait()
}

// handOver wakes other replicas for the partitions that this replica had queued. If that fails,
// their owners serve them soon.
func (q *Queue) handOver(ctx context.Context) {
	var partitions []int
	q.locked(func() {
		for _, s := range q.shards {
			partitions = append(partitions, s.queued...)
			s.queued = nil
		}
	})
	_ = q.enqueueWakeup(ctx, partitions)
}

// Release requeues all work that this replica has noted as in flight, and removes its heartbeat. It
// first fences the replica id, so that Redis refuses claims still under way. It returns when nothing uses
// Redis any more, except that asynq may continue after ctx while Redis hangs. Call Release after
// StopClaiming, once all outcomes are recorded.
func (q *Queue) Release(ctx context.Context) error {
	q.endHeartbeats()
	q.background.Wait()
	shards, err := partition.ByShard(ctx, q.opts.Client, partition.All(), partition.Prefix)
	var releasing sync.WaitGroup
	for _, partitions := range shards {
		releasing.Go(func() {
			_, failed := q.requeueAll(ctx, partitions, *q.replica.Load())
			q.locked(func() { err = errors.Join(err, failed) })
		})
	}
	releasing.Wait()
	return err
}

// renameFenced takes a new replica id after another replica took over the work under the old one.
func (q *Queue) renameFenced(old string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if *q.replica.Load() == old {
		q.rename()
		q.metrics.fenced.Inc()
		q.opts.Logger.Warn("another replica took over the work of this replica, claiming under a new id", "service.instance.id", old)
	}
}

// stopIfRefused reports whether err says that this replica cannot read the stored format. If so,
// the replica claims nothing more and leaves all wake-ups to other replicas.
func (q *Queue) stopIfRefused(err error) bool {
	format, ok := errors.AsType[*partition.FormatError](err)
	if ok && q.refused.CompareAndSwap(nil, format) {
		q.opts.Logger.Error("stored format not readable, claiming nothing more", "exception.message", format)
		q.server.Stop()
	}
	return ok
}

// Refused returns the *partition.FormatError that made this replica stop claiming; nil
// while the replica can read the stored format.
func (q *Queue) Refused() error {
	if format := q.refused.Load(); format != nil {
		return format
	}
	return nil
}

// EndJob ends this replica's claim of a job. The job is due again after the time again; a
// negative again ends the job.
func (q *Queue) EndJob(ctx context.Context, replica string, company, job uuid.UUID, again time.Duration) error {
	p := partition.Of(company)
	delay := any("")
	if again >= 0 {
		delay = again.Milliseconds()
	}
	call := &script.Call{Script: endJobScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), replica, company.String(), job.String(), delay}}
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return err
	}
	if call.Reply() == int64(1) {
		q.Kick(p)
	}
	return nil
}
