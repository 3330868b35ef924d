// Package workqueue claims the work of all companies for replicas: events of ready
// queues, deliveries of endpoint queues, and jobs. Package queues keeps them in Redis.
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
	"fmt"
	"log/slog"
	"maps"
	"slices"
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
	// Holding returns how many deliveries each company that holds some may claim,
	// and how many any other company may.
	Holding() (shares map[uuid.UUID]int, others int)
	// Passed notes that a claim passed a company by because the company may claim
	// nothing. It reports whether the company may claim again at once.
	Passed(company uuid.UUID) bool
	// Free returns how many deliveries a company may claim.
	Free(company uuid.UUID) int
}

// Options configures a Queue.
type Options struct {
	Client    redis.UniversalClient
	Replica   string // this process among its peers; the same after a restart, if possible
	Admission Admission
	// Take starts the work of batches that were claimed under the id replica.
	// It may be called concurrently and must not wait for receivers.
	Take func(ctx context.Context, replica string, batches []Batch)

	// Of endpoint queues; all three are required.
	EndpointLimit   int           // deliveries of one in flight, over all replicas
	HostLimit       int           // the same of all queues of one company on one host
	BreakerFailures int           // unreachable attempts in a row after which one is only probed
	AttemptTimeout  time.Duration // the longest that an attempt takes; default 15 s

	HeartbeatEvery time.Duration // default 500 ms
	ServiceEvery   time.Duration // how often owned partitions are checked for due work; default 250 ms
	CheckInterval  time.Duration // asynq: pause between two polls of an empty queue; default 1 ms
	StopTimeout    time.Duration // how long running wake-ups may continue after StopClaiming; default 5 s

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.AttemptTimeout = cmp.Or(o.AttemptTimeout, 15*time.Second)
	o.HeartbeatEvery = cmp.Or(o.HeartbeatEvery, 500*time.Millisecond)
	o.ServiceEvery = cmp.Or(o.ServiceEvery, 250*time.Millisecond)
	o.CheckInterval = cmp.Or(o.CheckInterval, time.Millisecond)
	o.StopTimeout = cmp.Or(o.StopTimeout, 5*time.Second)
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
	passed  *lru.Cache[uuid.UUID, time.Time] // when a claim last passed a company by
	wakeups *wakeups
	watch   *watch
	replica atomic.Pointer[string]                // the replica id that claims are noted under
	refused atomic.Pointer[partition.FormatError] // why nothing more is claimed
	failed  *pacedlog.Problems                    // limits the log lines of failed claims

	mu      sync.Mutex          // guards this group
	started bool                // queued partitions may be served
	servers map[string]*server  // by shard
	parked  map[int]bool        // to be served once this replica has places
	lost    map[int][]lostClaim // by partition, claims that are to be recovered
	dropped map[int]bool        // partitions that were to be served here after claiming stopped
	unwoken map[int]bool        // partitions that the next wake-up names
	waking  bool                // wake-ups are being enqueued

	calls         atomic.Uint64 // number of the last claim
	underway      atomic.Int64  // claims
	accepted      atomic.Int64  // deliveries that were claimed when they were accepted, and hold no places yet
	waiting       atomic.Int64  // len(parked)
	lastPartition atomic.Int64  // the partition served last
	othersUntil   atomic.Int64  // unix ms until which other partitions count as having work

	claiming      sync.WaitGroup
	background    sync.WaitGroup
	stopped       atomic.Bool
	ctx           context.Context //nolint:containedctx // StopClaiming ends it: no more claims start
	cancel        context.CancelFunc
	claimCtx      context.Context //nolint:containedctx // ends when running claims are cancelled
	cancelClaims  context.CancelFunc
	endHeartbeats context.CancelFunc
}

// New returns a queue that takes wake-ups and claims nothing yet.
func New(o Options) *Queue {
	o = o.withDefaults()
	passed, _ := lru.New[uuid.UUID, time.Time](maxPassed) // fails only for a size < 1
	q := &Queue{
		opts: o, passed: passed, servers: make(map[string]*server), parked: make(map[int]bool), unwoken: make(map[int]bool),
		lost: make(map[int][]lostClaim), dropped: make(map[int]bool), failed: pacedlog.New(o.Logger, "workqueue", nil),
	}
	q.watch = newWatch(q)
	q.metrics = newMetrics(o.Registerer, q.watch)
	q.wakeups = newWakeups(o, func() bool { return q.waiting.Load() > 0 })
	q.ctx, q.cancel = context.WithCancel(context.Background())
	q.claimCtx, q.cancelClaims = context.WithCancel(context.Background()) //nolint:gosec // StopClaiming ends it when it must
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
// claim.
func (q *Queue) Start(ctx context.Context) error {
	heartbeats, endHeartbeats := context.WithCancel(context.WithoutCancel(ctx))
	q.endHeartbeats = endHeartbeats
	if err := q.watch.begin(ctx); err != nil {
		endHeartbeats()
		return err
	}
	q.background.Go(func() { q.watch.run(heartbeats) })
	q.mu.Lock()
	q.started = true
	for _, s := range q.servers {
		q.begin(s)
	}
	q.mu.Unlock()
	err := q.wakeups.start(func(partitions []int) {
		q.metrics.served.Inc()
		q.serve(partitions)
	})
	if err != nil {
		q.StopClaiming(ctx)
		endHeartbeats()
		q.background.Wait()
		return err
	}
	if q.Refused() != nil { // just now
		q.wakeups.takeNoMore()
	}
	return nil
}

// StopClaiming starts no more claims and returns when none is running. When ctx ends, it
// cancels claims that Redis has not answered; Release requeues their work. In the background it
// wakes other replicas for the partitions that this one still had to serve.
func (q *Queue) StopClaiming(ctx context.Context) {
	if q.stopped.Swap(true) {
		return
	}
	q.mu.Lock() // no claim begins from here on
	q.cancel()
	q.mu.Unlock()
	defer context.AfterFunc(ctx, q.cancelClaims)()
	stopped := make(chan struct{})
	q.background.Go(func() {
		q.wakeups.stop()
		close(stopped)
		q.claiming.Wait()
		q.handOver(ctx) // from here on this replica takes no wake-up, and no round drops a partition
	})
	select {
	case <-stopped:
	case <-ctx.Done(): // asynq waits for Redis; wake-ups that it still takes are not served
	}
	q.claiming.Wait()
}

// handOver wakes other replicas for the partitions that this one still had to serve. If that
// fails, their owners serve them soon.
func (q *Queue) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, enqueueTimeout) // Release waits for it
	defer cancel()
	q.mu.Lock()
	maps.Copy(q.dropped, q.parked)
	partitions := slices.Collect(maps.Keys(q.dropped))
	q.mu.Unlock()
	for part := range slices.Chunk(partitions, wakeupMost) {
		if q.wakeups.enqueue(ctx, part) != nil {
			return
		}
	}
}

// Release requeues all work that this replica has noted as in flight, removes its
// heartbeat and returns once nothing uses Redis any more. While Redis hangs, asynq may use
// it for longer than ctx. Call Release after StopClaiming, once all outcomes are recorded.
func (q *Queue) Release(ctx context.Context) error {
	if q.endHeartbeats != nil {
		q.endHeartbeats()
	}
	q.background.Wait()
	return q.release(ctx, *q.replica.Load())
}

// Wake enqueues a wake-up for partitions that have work. It does not wait: partitions that come
// while a wake-up is being enqueued share the next one. If it cannot be enqueued, this replica
// serves the partitions itself. After StopClaiming, Wake waits and only tries to enqueue.
func (q *Queue) Wake(ctx context.Context, partitions []int) {
	if len(partitions) == 0 {
		return
	}
	polls := q.wakeups.waker.polls.Load()
	q.mu.Lock()
	stopping := q.ctx.Err() != nil
	if !stopping {
		for _, p := range partitions {
			q.unwoken[p] = true
		}
		if !q.waking {
			q.waking = true
			q.wakeups.trying.Go(q.enqueueWakeups)
		}
	}
	q.mu.Unlock()
	if stopping { // wake other replicas; if that fails, the owner serves the partition soon
		_ = q.wakeups.enqueue(ctx, partitions)
		return
	}
	time.AfterFunc(wakeupSlow, func() {
		if q.wakeups.waker.polls.Load() == polls { // asynq waits for Redis, or all its workers are busy
			q.Kick(partitions...)
		}
	})
}

// enqueueWakeups enqueues wake-ups until none is left.
func (q *Queue) enqueueWakeups() {
	for {
		q.mu.Lock()
		partitions := slices.Collect(maps.Keys(q.unwoken))
		clear(q.unwoken)
		q.waking = len(partitions) > 0
		q.mu.Unlock()
		if len(partitions) == 0 {
			return
		}
		var err error
		for part := range slices.Chunk(partitions, wakeupMost) {
			if err == nil {
				err = q.wakeups.enqueue(context.Background(), part)
			}
			if err != nil { // the queue of wake-ups may hang: this replica serves the rest, too
				q.metrics.wakeupsFailed.Inc()
				q.Kick(part...)
				continue
			}
			q.metrics.enqueued.Inc()
		}
	}
}

// Freed must be called when places in this replica's memory were freed. It serves the
// partitions that wait for a place.
func (q *Queue) Freed() {
	if q.waiting.Load() == 0 {
		return
	}
	q.mu.Lock()
	again := slices.Collect(maps.Keys(q.parked))
	clear(q.parked)
	q.waiting.Store(0)
	q.mu.Unlock()
	q.Kick(again...)
	q.wakeups.waker.wake()
}

// fenced takes a new replica id after another replica took over the work under the old one.
func (q *Queue) fenced(old string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if *q.replica.Load() == old {
		q.rename()
		q.metrics.fenced.Inc()
		q.opts.Logger.Warn("work was taken over by another replica, claiming under a new id", "service.instance.id", old)
	}
}

// refuse reports whether err says that this replica cannot read the stored format. If so,
// the replica claims nothing more and leaves all wake-ups to other replicas.
func (q *Queue) refuse(err error) bool {
	format, ok := errors.AsType[*partition.FormatError](err)
	if ok && q.refused.CompareAndSwap(nil, format) {
		q.opts.Logger.Error("stored format not readable, claiming nothing more", "exception.message", format)
		q.wakeups.takeNoMore()
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

// anyFree reports whether any company may claim.
func anyFree(shares map[uuid.UUID]int, others int) bool {
	if others > 0 {
		return true
	}
	for _, share := range shares {
		if share > 0 {
			return true
		}
	}
	return false
}

// park keeps partitions for which this replica has no places. Until a place is freed, the
// replica takes no wake-ups and leaves them to other replicas.
func (q *Queue) park(partitions []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range partitions {
		q.parked[p] = true
	}
	q.waiting.Store(int64(len(q.parked)))
}

// othersMemory is how long a partition that was served counts as having work.
const othersMemory = 250 * time.Millisecond

// served notes which partitions had work just now.
func (q *Queue) served(partitions []int) {
	last := int64(partitions[len(partitions)-1])
	if q.lastPartition.Swap(last) != int64(partitions[0]) || len(partitions) > 1 {
		q.othersUntil.Store(time.Now().Add(othersMemory).UnixMilli()) //nolint:forbidigo // tunes a size, decides nothing
	}
}

// othersServed reports whether another partition than p had work just now.
func (q *Queue) othersServed(p int) bool {
	return int(q.lastPartition.Load()) != p || time.Now().UnixMilli() < q.othersUntil.Load() //nolint:forbidigo // as above
}

// EndJob ends this replica's claim of a job. The job is due again after again; a negative
// again ends the job.
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
	if wake, _ := call.Reply().(int64); wake == 1 {
		q.Kick(p)
	}
	return nil
}

// Requeue requeues claimed work of one company that was not started.
func (q *Queue) Requeue(ctx context.Context, replica string, b Batch) error {
	if len(b.Events)+len(b.Deliveries)+len(b.Jobs) == 0 {
		return nil // without notes the script would requeue everything that the replica has noted
	}
	p := partition.Of(b.Company)
	args := q.requeueArgs(p, replica, "0", "")
	for _, e := range b.Events {
		args = append(args, b.Company.String()+"/"+e.ID)
	}
	for _, d := range b.Deliveries {
		args = append(args, b.Company.String()+"/"+d.EventID+"/"+d.Subscriber.String())
	}
	for _, j := range b.Jobs {
		args = append(args, "j:"+b.Company.String()+"/"+j.String())
	}
	call := &script.Call{Script: requeueScript, Keys: queues.Keys(p), Args: args}
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return fmt.Errorf("requeue work: %w", err)
	}
	q.reportQuarantined(p, call.Reply())
	q.Kick(p)
	return nil
}
