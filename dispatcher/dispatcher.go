// Package dispatcher turns accepted events into deliveries: it claims work, matches
// each event with its company's subscribers, attempts the deliveries and records
// their outcomes. Package workqueue keeps the waiting work, package delivery/store
// the deliveries.
package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/lifecycle"
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
	"spendhook/internal/partition"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/registry"
)

// Options configures [New]. The stores, the maker of requests and the sender are required.
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
	Policy       lifecycle.Policy

	Replica             string        // this process among its peers; the same after a restart, if possible
	Concurrency         int           // deliveries in memory: in flight, waiting or to be recorded; default 2,048
	EndpointConcurrency int           // attempts in flight to one endpoint; default 64
	HostConcurrency     int           // attempts of one company in flight to one host and port; default 256
	BreakerFailures     int           // unreachable attempts in a row that open an endpoint's breaker; default 10
	BreakerPause        time.Duration // how long an open breaker lets nothing through; default 10 s
	TopCompanies        int           // companies whose backlog is shown, those with the most; 0: none

	// Counted is called for every recorded attempt and must return at once. It may
	// be nil.
	Counted func(traffic.Attempt)

	// Tail shows attempts in open live tails; nil: there are none.
	Tail *tail.Tail

	// Queue tunes the work queue for tests. New sets the fields that Queue shares with Options.
	Queue workqueue.Options

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Tracer     trace.Tracer // nil: no spans
	Now        func() time.Time
	NewID      func() uuid.UUID
	Jitter     func() float64 // in [0,1)
}

func (o Options) withDefaults() Options {
	if o.EndpointConcurrency <= 0 {
		o.EndpointConcurrency = 64
	}
	if o.HostConcurrency <= 0 {
		o.HostConcurrency = 256
	}
	if o.BreakerFailures <= 0 {
		o.BreakerFailures = 10
	}
	if o.BreakerPause <= 0 {
		o.BreakerPause = 10 * time.Second
	}
	if o.Counted == nil {
		o.Counted = func(traffic.Attempt) {}
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the one default
	}
	if o.NewID == nil {
		o.NewID = uuid.New
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

// Dispatcher delivers events. Make it with New, call Start once and Stop once.
// Its other methods may be called concurrently at any time in between; those
// that read work before Start as well.
type Dispatcher struct {
	opts        Options
	queue       *workqueue.Queue
	quarantined *quarantine.Store
	backlog     *backlog.Meter
	admission   *endpoint.Admission
	deliveries  *store.Store
	redelivery  *redelivery.Service
	target      func(context.Context, *subscribers.Subscriber) (*requests.Target, error) // the maker's
	send        func(context.Context, webhook.Request) attempt.Result                    // the sender's
	records     *recorders
	after       *consequences
	publish     func(context.Context, []events.Event) ([]publish.Result, error)
	metrics     *metrics
	jobs        chan struct{}
	forwards    chan struct{}

	intake     context.Context //nolint:containedctx // ends when Stop begins: nothing new is started
	endIntake  context.CancelFunc
	sending    context.Context //nolint:containedctx // ends when attempts are cut short
	endSending context.CancelCauseFunc
	working    sync.WaitGroup // attempts and job steps
	background sync.WaitGroup
	endLoops   context.CancelFunc
}

// maxJobs is how many job steps a replica runs at once.
const maxJobs = 8

// New returns a dispatcher that delivers nothing yet.
func New(o Options) *Dispatcher {
	o = o.withDefaults()
	d := &Dispatcher{
		opts: o,
		admission: endpoint.New(endpoint.Options{
			Places: o.Concurrency, PerEndpoint: o.EndpointConcurrency, PerHost: o.HostConcurrency,
			BreakerFailures: o.BreakerFailures, BreakerPause: o.BreakerPause, Now: o.Now,
		}),
		deliveries: store.New(store.Options{
			Client: o.Client, Policy: o.Policy, BreakerPause: o.BreakerPause, BreakerFailures: o.BreakerFailures, Now: o.Now,
		}),
		jobs:     make(chan struct{}, maxJobs),
		forwards: make(chan struct{}, maxForwards),
		send:     o.Sender.Send,
		target:   o.Requests.Target,
	}
	q := o.Queue
	q.Client, q.Replica, q.Admission, q.Take = o.Client, o.Replica, d.admission, d.take
	q.EndpointLimit, q.HostLimit = o.EndpointConcurrency, o.HostConcurrency
	q.BreakerFailures, q.AttemptTimeout = o.BreakerFailures, o.Sender.Timeout()
	q.Logger, q.Registerer = o.Logger, o.Registerer
	d.queue = workqueue.New(q)
	d.quarantined = quarantine.New(quarantine.Options{Client: o.Client, Wake: d.queue.Wake, Kick: d.queue.Kick})
	d.backlog = backlog.New(o.Client, d.queue.PassedSince)
	d.redelivery = redelivery.New(redelivery.Options{
		Client: o.Client, Deliveries: d.deliveries, Events: o.Events, Registry: o.Registry, Subscribers: o.Subscribers,
		Certificates: o.Certificates, Queue: d.queue, Quarantine: d.quarantined,
		Now: o.Now, NewID: o.NewID, Logger: o.Logger,
	})
	d.records = newRecorders(d)
	d.metrics = newMetrics(o.Registerer, d.admission, d.records.lag)
	d.after = newConsequences(d)
	d.intake, d.endIntake = context.WithCancel(context.Background())
	d.sending, d.endSending = context.WithCancelCause(context.Background())
	return d
}

// Deliveries reads the deliveries.
func (d *Dispatcher) Deliveries() *store.Store { return d.deliveries }

// Redelivery retries, replays and recovers.
func (d *Dispatcher) Redelivery() *redelivery.Service { return d.redelivery }

// Wake wakes partitions that have new events. The publisher calls it after a commit.
func (d *Dispatcher) Wake(ctx context.Context, partitions []int) { d.queue.Wake(ctx, partitions) }

// Claimer claims new events for this replica in the script that accepts them.
func (d *Dispatcher) Claimer() publish.Claimer { return d.queue }

// Backlog measures the pending work of all partitions, of every replica.
func (d *Dispatcher) Backlog(ctx context.Context) (backlog.Total, error) {
	return d.backlog.Measure(ctx, partition.All())
}

// Largest lists up to n companies with the most pending events, the most first.
func (d *Dispatcher) Largest(ctx context.Context, n int) ([]backlog.Company, error) {
	return d.backlog.Top(ctx, n)
}

// Owned lists the partitions that this replica schedules now; none before Start.
func (d *Dispatcher) Owned() []int { return d.queue.Owned() }

// Refused returns an error while this replica claims nothing because it cannot read the
// stored format; else nil.
func (d *Dispatcher) Refused() error { return d.queue.Refused() }

// Start requeues what a former run of this replica left in flight and begins
// to deliver. publish accepts the operational events of the operations company.
func (d *Dispatcher) Start(ctx context.Context, publish func(context.Context, []events.Event) ([]publish.Result, error)) error {
	loops, endLoops := context.WithCancel(context.WithoutCancel(ctx))
	d.endLoops = endLoops
	d.publish = publish
	d.background.Go(func() { d.runGauges(loops) })
	d.background.Go(func() { d.runCompaction(loops) })
	if err := d.queue.Start(ctx); err != nil {
		d.Stop(ctx)
		return fmt.Errorf("start the work queue: %w", err)
	}
	return nil
}

// errStopping is the cause of the attempts that a shutdown cancels.
var errStopping = fmt.Errorf("the daemon is shutting down: %w", context.Canceled)

// Stop drains the dispatcher: it stops claiming, lets running attempts finish until
// shortly before ctx ends, records their outcomes, and requeues all other work without
// counting an attempt.
func (d *Dispatcher) Stop(ctx context.Context) {
	d.endIntake()
	attempts, last, cancel := splitDrain(ctx)
	defer cancel()
	defer context.AfterFunc(attempts, func() { d.endSending(errStopping) })()
	d.queue.StopClaiming(last)
	d.admission.Stop()
	waitFor(attempts, &d.working)
	d.endSending(errStopping)
	clean := waitFor(last, &d.working)
	if !clean { // Redis does not answer: the recorders discard their outcomes
		d.records.discard()
		d.working.Wait()
	}
	defer context.AfterFunc(last, d.after.end)()
	clean = d.records.close(last) && clean
	d.after.close()
	d.endLoops()
	d.background.Wait()
	if !clean {
		d.opts.Logger.Error("outcomes not recorded before shutdown, their attempts will be repeated")
		last, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastTry)
		defer cancel()
	}
	if err := d.queue.Release(last); err != nil {
		d.opts.Logger.Warn("work in flight not requeued, another replica will", "exception.message", err)
	}
}

const (
	// lastRecords is how long the last outcomes may take to be written.
	lastRecords = 3 * time.Second
	// lastTry bounds the requeue of work in flight after outcomes could not be
	// recorded.
	lastTry = 500 * time.Millisecond
)

// splitDrain splits the time until ctx ends. Attempts may finish until attempts ends. The
// rest of the time is for recording outcomes, until last ends with ctx: lastRecords, or a
// third of all when that is shorter. When ctx has ended or has no deadline, attempts is
// ctx, and last ends after lastRecords.
func splitDrain(ctx context.Context) (attempts, last context.Context, cancel func()) {
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), lastRecords)
	end, ok := ctx.Deadline()
	if !ok || ctx.Err() != nil {
		return ctx, last, cancelLast
	}
	cancelLast()
	last, cancelLast = context.WithDeadline(context.WithoutCancel(ctx), end)
	attempts, cancelAttempts := context.WithDeadline(ctx, end.Add(-min(lastRecords, time.Until(end)/3))) //nolint:forbidigo // as contexts do
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

// mayClaim serves the partitions of companies that were refused a place and may now claim again.
func (d *Dispatcher) mayClaim(again []uuid.UUID) {
	for _, company := range again {
		d.queue.Kick(partition.Of(company))
	}
}
