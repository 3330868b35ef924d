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
	"spendhook/internal/queues"
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
	// Take starts the work of batches that were claimed. It may be called concurrently and must not wait
	// for receivers.
	Take func(ctx context.Context, batches []Batch)

	// Required, for endpoint queues.
	EndpointLimit   int           // deliveries of a queue in flight, over all replicas
	HostLimit       int           // deliveries in flight of all queues of a company on one host
	BreakerFailures int           // unreachable attempts in a row that open the breaker of a queue
	AttemptTimeout  time.Duration // longest time of an attempt; default 15 s

	HeartbeatEvery time.Duration // default 500 ms
	ServiceEvery   time.Duration // how often owned partitions are checked for due and for lost work; default 250 ms

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, 15*time.Second)
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
	owner   *owner.Owner
	metrics *metrics
	skipped *lru.Cache[uuid.UUID, time.Time] // when a claim last skipped a company
	failed  *pacedlog.Problems               // claims that failed
	wakeups

	mu      sync.Mutex // guards this group and the next, and the shards
	started bool       // queued partitions may be served
	shards  map[string]*shard
	unwoken map[int]bool // partitions whose owners are to be woken
	waking  bool         // owners are being woken

	lost []lostClaim // claims that are to be recovered

	calls         atomic.Uint64 // number of the last claim
	underway      atomic.Int64  // claims
	accepted      atomic.Int64  // deliveries that were claimed when they were accepted, and hold no places yet
	full          atomic.Bool   // partitions are queued until this replica has places
	lastPartition atomic.Int64  // the partition served last
	othersUntil   atomic.Int64  // unix ms until which other partitions count as having work

	claiming     sync.WaitGroup
	background   sync.WaitGroup
	ctx          context.Context //nolint:containedctx // StopClaiming ends it: no more claims start
	cancel       context.CancelFunc
	claimCtx     context.Context //nolint:containedctx // ends when running claims are cancelled
	cancelClaims context.CancelFunc
	ticks        context.Context //nolint:containedctx // Release ends it: no more ticks
	endTicks     context.CancelFunc
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
	q.wakeups = newWakeups(o)
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.claimCtx, q.cancelClaims = context.WithCancel(context.Background()) //nolint:gosec // StopClaiming ends it
	q.ticks, q.endTicks = context.WithCancel(context.Background())
	q.owner = owner.New(owner.Options{
		Client: o.Client, Replica: o.Replica, Every: o.HeartbeatEvery, Logger: o.Logger, Registerer: o.Registerer,
		Changed: func(partitions []int) { q.Wake(q.claimCtx, partitions) },
		Gone:    q.deleteQueue,
	})
	return q
}

// Start begins to claim the work of the partitions that this replica owns. StopClaiming and Release must
// follow, also after an error.
func (q *Queue) Start(ctx context.Context) error {
	if err := q.owner.Start(ctx); err != nil {
		return err
	}
	q.locked(func() {
		q.started = true
		q.beginAll()
	})
	q.background.Go(func() { q.runTicks(q.ticks) })
	return q.takeWakeups()
}

// StopClaiming gives all partitions away, and returns when no claim is running. When ctx ends, it cancels
// the claims that Redis has not answered; Release requeues their work.
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
		q.stopWakeups()
		close(stopped)
	})
	if err := q.owner.Leave(ctx); err != nil { // the other replicas take them a moment later
		q.opts.Logger.Warn("partitions not given away", "exception.message", err)
	}
	q.claiming.Wait()
	select {
	case <-stopped:
	case <-ctx.Done(): // asynq waits for Redis: it may take wake-ups, which nothing serves
	}
}

// Release requeues all work that this replica has noted as in flight, and removes its heartbeat. It
// returns when nothing uses Redis any more, except that asynq may continue after ctx while Redis hangs.
// Call Release after StopClaiming, once all outcomes are recorded.
func (q *Queue) Release(ctx context.Context) error {
	q.endTicks()
	q.background.Wait()
	shards, err := partition.ByShard(ctx, q.opts.Client, partition.All(), partition.Prefix)
	var releasing sync.WaitGroup
	for _, partitions := range shards {
		releasing.Go(func() {
			failed := q.owner.Give(ctx, partitions) // in case that Redis did not answer before
			if failed == nil {
				failed = q.requeueOwn(ctx, partitions)
			}
			q.locked(func() { err = errors.Join(err, failed) })
		})
	}
	releasing.Wait()
	q.deleteQueue(q.opts.Replica)
	return errors.Join(err, q.owner.Close(ctx))
}

// Owned lists the partitions that this replica owns.
func (q *Queue) Owned() []int { return q.owner.Owned() }

// Refused returns the *partition.FormatError that made this replica stop claiming; nil
// while the replica can read the stored format.
func (q *Queue) Refused() error { return q.owner.Refused() }

// locked calls f while it holds Queue.mu.
func (q *Queue) locked(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

// EndJob ends the claim of a job, which was noted under a token. The job is due again after the time
// again; a negative again ends the job.
func (q *Queue) EndJob(ctx context.Context, token string, company, job uuid.UUID, again time.Duration) error {
	p := partition.Of(company)
	delay := any("")
	if again >= 0 {
		delay = again.Milliseconds()
	}
	call := &script.Call{Script: endJobScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), token, company.String(), job.String(), delay}}
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return err
	}
	if call.Reply() == int64(1) {
		q.Wake(ctx, []int{p})
	}
	return nil
}
