// Package dispatcher turns accepted events into deliveries: it takes work, matches
// each event with its company's subscribers, attempts the deliveries and records
// their outcomes. Package workqueue keeps the waiting work, package delivery/store
// the deliveries.
package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/endpoint"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/storage/archive"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// Options configures [New]. The stores, Requests and Sender are required, but not Archive and Restore.
type Options struct {
	Client       redis.UniversalClient
	Events       *history.Reader
	Operational  *operational.Store
	Subscribers  *subscribers.Store
	Certificates *certificate.Store
	Health       *health.Store
	Registry     *registry.Registry
	Requests     *requests.Maker
	Sender       *webhook.Sender
	Policy       delivery.Policy

	Archive          *archive.Store              // the history; nil: there is none
	ArchiveRetention time.Duration               // how long events are kept in the history
	CompanyRetention map[uuid.UUID]time.Duration // the same, of companies with a shorter time

	Replica             string        // unique name of this process; it should survive a restart
	Concurrency         int           // deliveries in memory: in flight, waiting or to be recorded; default 2,048
	EndpointConcurrency int           // attempts in flight to one endpoint; default 64
	HostConcurrency     int           // attempts of one company in flight to one host and port; default 256
	BreakerFailures     int           // unreachable attempts in a row that open an endpoint's breaker; default 10
	BreakerPause        time.Duration // how long an open breaker blocks all attempts; default 10 s
	CompactEvery        time.Duration // between the starts of two compactions of settled events; default 10 s
	ArchiveEvery        time.Duration // between two reads of settled events for the history; default 1 s
	UnfinishedJobs      int           // of a company at most; default 100
	JobPage             int           // deliveries or events that one step of a job examines; default 500
	TopCompanies        int           // companies with the largest backlogs that metrics show; 0: none

	Counted func(traffic.Attempt)                              // called for every recorded attempt, must return at once; nil: not called
	Tail    *tail.Tail                                         // shows attempts in open live tails; nil: there are none
	Forget  func(ctx context.Context, company uuid.UUID) error // as redelivery.Options
	Free    func(company uuid.UUID) int64                      // as redelivery.Options

	// Queue tunes the work queue for tests. New sets the fields that Queue shares with Options.
	Queue workqueue.Options

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Tracer     trace.Tracer // nil: no spans
	Now        func() time.Time
	Jitter     func() float64 // in [0,1)
}

// Dispatcher delivers events. Make it with New, call Start once and Stop once.
// Its other methods may be called concurrently at any time in between. Its fields never
// change.
type Dispatcher struct {
	// Deliveries reads the deliveries.
	Deliveries *store.Store
	// Redelivery retries, replays and recovers.
	Redelivery *redelivery.Service
	// Queue is the work queue. The publisher tells it of new events, and wakes it.
	Queue *workqueue.Queue
	// Backlog measures the waiting work.
	Backlog *backlog.Meter
	// Quarantine has the events, deliveries and subscribers that could not be read.
	Quarantine *quarantine.Store

	opts      Options
	admission *endpoint.Admission
	target    func(*subscribers.Subscriber) *requests.Target        // Options.Requests.Target; tests replace it
	send      func(context.Context, webhook.Request) attempt.Result // Options.Sender.Send; tests replace it
	starts    *starter
	records   *recorders
	sampled   *lru.Cache[uuid.UUID, lastSample] // by subscriber
	publish   func(context.Context, []events.Event) ([]publish.Result, error)
	metrics   *metrics
	jobs      chan struct{}
	forwards  chan struct{}
	filtered  companyQueues // events that wait to be matched with filters
	chains    *chains

	intake     context.Context //nolint:containedctx // ends when Stop begins: nothing new is started
	endIntake  context.CancelFunc
	sending    context.Context //nolint:containedctx // ends when attempts are cut short
	endSending context.CancelCauseFunc

	publishing    context.Context //nolint:containedctx // ends when the consequences of outcomes are cut short
	endPublishing context.CancelFunc

	working    sync.WaitGroup // attempts, job steps, and matching beside the turns
	background sync.WaitGroup
	endLoops   context.CancelFunc
}

// maxJobs is how many job steps a replica runs at once.
const maxJobs = 8

// New returns a dispatcher. It delivers nothing before Start.
func New(o Options) *Dispatcher {
	o.EndpointConcurrency = cmp.Or(o.EndpointConcurrency, 64)
	o.HostConcurrency = cmp.Or(o.HostConcurrency, 256)
	o.BreakerFailures = cmp.Or(o.BreakerFailures, 10)
	o.BreakerPause = cmp.Or(o.BreakerPause, 10*time.Second)
	o.CompactEvery = cmp.Or(o.CompactEvery, 10*time.Second)
	o.ArchiveEvery = cmp.Or(o.ArchiveEvery, time.Second)
	given := o.Now
	o.Now = clock.Or(given)
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	stored := store.Options{Client: o.Client, Policy: o.Policy, Now: given}
	if o.Archive != nil { // else the interface would not be nil
		stored.Archive = o.Archive
	}
	d := &Dispatcher{
		opts: o,
		admission: endpoint.New(endpoint.Options{
			Places: o.Concurrency, PerEndpoint: o.EndpointConcurrency, PerHost: o.HostConcurrency,
			BreakerFailures: o.BreakerFailures, BreakerPause: o.BreakerPause, Now: o.Now,
		}),
		Deliveries: store.New(stored),
		jobs:       make(chan struct{}, maxJobs),
		forwards:   make(chan struct{}, maxForwards),
		send:       o.Sender.Send,
		target:     o.Requests.Target,
	}
	q := o.Queue
	q.Client, q.Replica, q.Admission, q.Take = o.Client, o.Replica, d.admission, d.take
	q.AttemptTimeout = o.Sender.Timeout()
	q.Logger, q.Registerer = o.Logger, o.Registerer
	d.Queue = workqueue.New(q)
	d.Quarantine = quarantine.New(o.Client, d.Queue.Wake)
	d.Backlog = backlog.New(o.Client, o.Policy.DeadRetention, d.Queue.SkippedSince)
	d.Redelivery = redelivery.New(redelivery.Options{
		Client: o.Client, Deliveries: d.Deliveries, Events: o.Events, Registry: o.Registry, Subscribers: o.Subscribers,
		Certificates: o.Certificates, Archive: o.Archive, Wake: d.Queue.Wake, Quarantine: d.Quarantine, Forget: o.Forget, Free: o.Free, Spill: d.admission.Spill,
		Now: given, NewID: uuid.New, Unfinished: o.UnfinishedJobs, Page: o.JobPage, Attempt: o.Sender.Timeout() + 10*time.Second, Logger: o.Logger,
	})
	d.chains = newChains()
	d.starts = newStarter(d.attempt)
	d.records = newRecorders(d)
	d.metrics = newMetrics(o.Registerer, d.admission, d.records.lag)
	d.sampled, _ = lru.New[uuid.UUID, lastSample](maxSampled) // fails only for a size < 1
	d.intake, d.endIntake = context.WithCancel(context.Background())
	d.sending, d.endSending = context.WithCancelCause(context.Background())
	d.publishing, d.endPublishing = context.WithCancel(context.Background())
	return d
}

// Start requeues what a former run of this replica left in flight and begins
// to deliver. publish accepts the operational events of the operations company.
func (d *Dispatcher) Start(ctx context.Context, publish func(context.Context, []events.Event) ([]publish.Result, error)) error {
	loops, endLoops := context.WithCancel(context.WithoutCancel(ctx))
	d.endLoops = endLoops
	d.publish = publish
	d.background.Go(func() { d.runGauges(loops) })
	d.background.Go(func() { d.runCompaction(loops) })
	d.background.Go(func() { d.runArchive(loops) })
	d.background.Go(func() { d.runTrim(loops) })
	if err := d.Queue.Start(ctx); err != nil {
		d.Stop(ctx)
		return fmt.Errorf("start the work queue: %w", err)
	}
	return nil
}

// errStopping is the cancel cause of the attempts that a shutdown interrupts.
var errStopping = fmt.Errorf("the daemon is shutting down: %w", context.Canceled)

// Stop drains the dispatcher: it stops starting work, lets running attempts finish until
// shortly before ctx ends, records their outcomes, and requeues all other work without
// counting an attempt.
func (d *Dispatcher) Stop(ctx context.Context) {
	d.endIntake()
	attempts, last, cancel := splitDrain(ctx)
	defer cancel()
	defer context.AfterFunc(attempts, func() { d.endSending(errStopping) })()
	d.Queue.Leave(last)
	d.admission.Stop()
	waitFor(attempts, &d.working)
	d.endSending(errStopping)
	clean := waitFor(last, &d.working)
	if !clean { // Redis does not answer: the recorders discard their outcomes
		d.records.end()
		d.working.Wait()
	}
	clean = d.records.close(last) && clean
	d.endLoops()
	d.background.Wait()
	if !clean {
		d.opts.Logger.Error("outcomes not recorded before shutdown, their attempts will be repeated")
		last, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastTry)
		defer cancel()
	}
	if err := d.Queue.Release(last); err != nil {
		d.opts.Logger.Warn("work in flight not requeued, another replica will requeue it", "exception.message", err)
	}
}

const (
	// lastRecords is how long the last outcomes may take to be written.
	lastRecords = 3 * time.Second
	// lastTry bounds the requeue of work in flight after outcomes could not be
	// recorded.
	lastTry = 500 * time.Millisecond
)

// splitDrain splits the time until ctx ends. Attempts may finish until attempts ends, outcomes are
// recorded until last ends. Recording gets lastRecords, but at most a third of the time. When ctx has
// ended or has no deadline, all the time is lastRecords.
func splitDrain(ctx context.Context) (attempts, last context.Context, cancel func()) {
	end, ok := ctx.Deadline()
	if !ok || ctx.Err() != nil {
		end = time.Now().Add(lastRecords) //nolint:forbidigo // as contexts do
	}
	last, cancelLast := context.WithDeadline(context.WithoutCancel(ctx), end)
	attempts, cancelAttempts := context.WithDeadline(ctx, end.Add(-min(lastRecords, time.Until(end)/3))) //nolint:forbidigo // as above
	return attempts, last, func() { cancelAttempts(); cancelLast() }
}

// waitFor waits for wg, and reports false when ctx ended first.
func waitFor(ctx context.Context, wg *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// wake has the partition of a company served.
func (d *Dispatcher) wake(company uuid.UUID) {
	d.Queue.Wake(d.publishing, []int{partition.Of(company)})
}
