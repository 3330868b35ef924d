// Package cardjobs runs the bulk creation of cards: it hands each item of a
// stored job to a queue of its own, has its card created exactly once, and
// publishes exactly one event about its outcome, whatever crashes in between.
//
// The database is the record of what is to be done: items that are PENDING, and
// outcomes in the outbox. The queue only makes it fast; what it loses is found.
package cardjobs

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/events"
	"spendhook/storage"
)

// Publish takes events as events.Publisher.Accept does.
type Publish func(context.Context, []events.Event) ([]events.Result, error)

// Options configures [New]. Store, Queue and Publish are required.
type Options struct {
	Store   *storage.Store
	Queue   *Queue
	Publish Publish

	OutboxEvery  time.Duration // how often outcomes that were left unpublished are looked for; default 2 s
	RecoverEvery time.Duration // how often unfinished jobs are looked at, and the gauge is read; default 5 s
	RecoverAfter time.Duration // how long an item may take once it has left the queue; default 15 s
	PurgeEvery   time.Duration // how often old jobs are forgotten; default 1 h
	Retention    time.Duration // how long a job can be read, from its creation; default 30 days

	Logger     *slog.Logger          // nil: discard
	Registerer prometheus.Registerer // nil: nowhere
	Now        func() time.Time      // nil: the real clock
}

func (o Options) withDefaults() Options {
	o.OutboxEvery = orDuration(o.OutboxEvery, 2*time.Second)
	o.RecoverEvery = orDuration(o.RecoverEvery, 5*time.Second)
	o.RecoverAfter = orDuration(o.RecoverAfter, 15*time.Second)
	o.PurgeEvery = orDuration(o.PurgeEvery, time.Hour)
	o.Retention = orDuration(o.Retention, 30*24*time.Hour)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the one default
	}
	return o
}

// Runner runs card jobs, beside any number of other replicas' runners. Make it
// with New, call Start once and Stop once. Submit may be called concurrently at
// any time.
type Runner struct {
	opts      Options
	metrics   *metrics
	published *published
	handedOut map[uuid.UUID]time.Time // unfinished jobs by when this replica recovered them; of the recovery loop

	stopping chan struct{} // closed when Stop begins
	endLoops context.CancelFunc
	endWork  context.CancelFunc
	loops    sync.WaitGroup
	working  sync.WaitGroup
}

// New returns a Runner that does nothing yet.
func New(o Options) *Runner {
	o = o.withDefaults()
	return &Runner{
		opts: o, metrics: newMetrics(o.Registerer), published: newPublished(),
		handedOut: map[uuid.UUID]time.Time{}, stopping: make(chan struct{}),
	}
}

// Submit stores 1 to 500 requests as a job and hands its items to the queue.
// Once it has returned the job, all of it will be done: what the queue does not
// take is found later. Again for the same once, it hands out what is already
// being done, to no effect. The errors are those of storage.Store.CreateCardJob.
func (r *Runner) Submit(ctx context.Context, company uuid.UUID, requests []storage.CardRequest, once storage.Once) (storage.CardJob, error) {
	job, err := r.opts.Store.CreateCardJob(ctx, company, requests, once)
	if err != nil {
		return storage.CardJob{}, err
	}
	r.metrics.jobs.WithLabelValues(string(storage.JobQueued)).Inc()
	indexes := make([]int, len(job.Items))
	for i := range indexes {
		indexes[i] = i
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enqueueTimeout)
	defer cancel()
	if err := r.opts.Queue.enqueue(ctx, job.UUID, indexes, job.CreatedAt); err != nil {
		r.opts.Logger.Warn("card job left to recovery", "job_uuid", job.UUID, "error", err)
	}
	return job, nil
}

// enqueueTimeout bounds what a Redis that does not answer costs a Submit.
const enqueueTimeout = time.Second

// Start begins to work on items and to look for what was left undone.
func (r *Runner) Start(ctx context.Context) error {
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	loops, endLoops := context.WithCancel(work)
	r.endWork, r.endLoops = endWork, endLoops
	if err := r.opts.Queue.start(func(job uuid.UUID, index int) bool { return r.handle(work, job, index) }); err != nil {
		endWork()
		return fmt.Errorf("start card jobs: %w", err)
	}
	r.loops.Go(func() { r.loop(loops, "publish pending card outcomes", r.opts.OutboxEvery, r.publishPending) })
	r.loops.Go(func() { r.loop(loops, "recover card jobs", r.opts.RecoverEvery, r.recoverJobs) })
	r.loops.Go(func() { r.loop(loops, "purge card jobs", r.opts.PurgeEvery, r.purge) })
	return nil
}

// Stop takes in no more items, lets the running ones finish until ctx ends, and
// hands the rest back to the queue. It returns when nothing runs any more.
func (r *Runner) Stop(ctx context.Context) {
	close(r.stopping)
	r.endLoops()
	defer context.AfterFunc(ctx, r.endWork)()
	r.opts.Queue.stop()
	r.working.Wait()
	r.loops.Wait()
	r.endWork()
}

// purge forgets jobs past their retention, and old Idempotency-Keys.
func (r *Runner) purge(ctx context.Context) error {
	before := r.opts.Now().Add(-r.opts.Retention)
	for {
		jobs, err := r.opts.Store.PurgeCardJobs(ctx, before)
		if err != nil {
			return err
		}
		keys, err := r.opts.Store.PurgeCreations(ctx)
		if err != nil || jobs == 0 && keys == 0 {
			return err
		}
	}
}
