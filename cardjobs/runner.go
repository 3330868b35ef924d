// Package cardjobs runs the bulk creation of cards. It creates the card of each item of a
// stored job exactly once, companies in turn, and publishes exactly one event about its
// outcome, even after a crash.
//
// The database is the queue: items that are PENDING, and outcomes in the outbox.
// In one transaction a worker claims an item, creates its card and writes its outcome.
package cardjobs

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/storage/cards"
)

const (
	workers    = 8 // items worked on at once
	purgeEvery = time.Hour
)

// Publish accepts events as publish.Publisher.Accept does.
type Publish func(context.Context, []events.Event) ([]publish.Result, error)

// Options configures [New]. Store and Publish are required.
type Options struct {
	Store   *cards.Store
	Publish Publish

	// Every is the interval at which the Runner looks for work of all replicas in the database:
	// pending items, and outcomes that are not published. 0 means 2 s.
	Every time.Duration

	// Reports says whether this replica's metrics include values that all replicas share;
	// nil: they do.
	Reports func() bool

	Logger     *slog.Logger          // nil: discard
	Registerer prometheus.Registerer // nil: nowhere
}

func (o Options) withDefaults() Options {
	o.Every = cmp.Or(o.Every, 2*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// Runner runs card jobs. Each replica may have one. Make it with New, call Start once and
// Stop once. Submit may be called concurrently at any time.
type Runner struct {
	opts    Options
	metrics *metrics

	wake      chan struct{} // has an element when an idle worker must check for items
	endIntake context.CancelFunc
	endWork   context.CancelFunc
	running   sync.WaitGroup
}

// New returns a Runner. Start starts it.
func New(o Options) *Runner {
	o = o.withDefaults()
	return &Runner{opts: o, metrics: newMetrics(o.Registerer, o.Reports), wake: make(chan struct{}, 1)}
}

// Submit stores 1 to 500 requests as a job. Once it has returned, this replica or another one
// completes the job. The errors are those of cards.Store.CreateCardJob.
func (r *Runner) Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error) {
	job, err := r.opts.Store.CreateCardJob(ctx, company, requests, once)
	if err != nil {
		return cards.Job{}, err
	}
	r.wakeOne()
	return job, nil
}

// Start processes items, including those that lost replicas left unfinished.
func (r *Runner) Start(ctx context.Context) {
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	intake, endIntake := context.WithCancel(work)
	r.endWork, r.endIntake = endWork, endIntake
	for range workers {
		r.running.Go(func() { r.work(intake, work) })
	}
	r.running.Go(func() { r.loop(intake, "publish pending card outcomes", r.opts.Every, r.publishPending) })
	r.running.Go(func() { r.loop(intake, "count pending card items", r.opts.Every, r.countPending) })
	r.running.Go(func() { r.loop(intake, "purge card jobs", purgeEvery, r.purge) })
}

// Stop lets running items finish until ctx ends, and then cancels and rolls back the others. No
// item starts after the call. It returns when nothing is running.
func (r *Runner) Stop(ctx context.Context) {
	r.endIntake()
	defer context.AfterFunc(ctx, r.endWork)()
	r.running.Wait()
	r.endWork()
}

// purge deletes old jobs.
func (r *Runner) purge(ctx context.Context) error {
	for {
		if n, err := r.opts.Store.Purge(ctx); err != nil || n == 0 {
			return err
		}
	}
}
