package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/subscribers"
)

// Options configures [New]. All stores and the sender are required.
type Options struct {
	Store       *Store
	Queue       *Queue
	Events      *events.Store
	Subscribers *subscribers.Store
	Registry    *subscribers.Registry
	Sender      *webhook.Sender
	Policy      Policy

	Replica             string        // this process among its peers; the same after a restart, if possible
	Concurrency         int           // attempts in flight; default 2,048
	EndpointConcurrency int           // attempts in flight to one endpoint; default 64
	SignEd25519         bool          // add v1a signatures
	MaxWait             time.Duration // how long a delivery queues for a slot of its endpoint before it is put off; default 250 ms

	LostAfter  time.Duration // longer than a hand-out takes from its stamp into the queue; default 100 ms
	ClockEvery time.Duration // how often due deliveries are looked for; default 500 ms
	SweepEvery time.Duration // how often lost work is looked for; default 1 s
	BeatEvery  time.Duration // how often a replica says that it lives; default 500 ms

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
	NewID      func() uuid.UUID
	Jitter     func() float64 // in [0,1)
}

func (o Options) withDefaults() Options {
	o.LostAfter = orDuration(o.LostAfter, 100*time.Millisecond)
	o.MaxWait = orDuration(o.MaxWait, 250*time.Millisecond)
	o.ClockEvery = orDuration(o.ClockEvery, 500*time.Millisecond)
	o.SweepEvery = orDuration(o.SweepEvery, time.Second)
	o.BeatEvery = orDuration(o.BeatEvery, 500*time.Millisecond)
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

// Publish accepts events that the daemon itself raises.
type Publish func(context.Context, []events.Event) ([]events.Result, error)

// Dispatcher delivers events. Make it with New, call Start once and Stop once.
// Its other methods may be called concurrently at any time in between; those
// that read work before Start as well.
type Dispatcher struct {
	Options
	endpoints *endpoints
	recorder  *recorder
	health    *healthKeeper
	herald    *herald
	metrics   *metrics
	targets   *lru.Cache[*subscribers.Subscriber, *target]
	nudge     chan struct{} // wakes the clock
	room      room
	jobs      chan struct{}    // holds one for each job under way
	recent    recent           // events accepted here that wait for their dispatch
	testing   sync.Map         // subscribers that are being tested
	suspects  map[string]int64 // the sweep's: open references that may be lost, and their stamps

	intake     context.Context //nolint:containedctx // ends when Stop begins: nothing new is started
	endIntake  context.CancelFunc
	sending    context.Context //nolint:containedctx // ends when attempts are cut short
	endSending context.CancelCauseFunc
	working    sync.WaitGroup // task handlers and attempts
	recording  sync.WaitGroup
	background sync.WaitGroup
	endLoops   context.CancelFunc
	endRecords context.CancelFunc
}

// maxTargets bounds the subscribers whose keys are held ready.
const maxTargets = 1 << 14

// New returns a dispatcher that accepts references but delivers nothing yet.
func New(o Options) (*Dispatcher, error) {
	o = o.withDefaults()
	targets, err := lru.New[*subscribers.Subscriber, *target](maxTargets)
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{
		Options:   o,
		endpoints: newEndpoints(endpointsOptions{Concurrency: o.Concurrency, PerEndpoint: o.EndpointConcurrency, Now: o.Now}),
		targets:   targets,
		nudge:     make(chan struct{}, 1),
		jobs:      make(chan struct{}, maxJobs),
		room:      room{limit: max(1, orInt(o.Concurrency, defaultConcurrency)/2)},
	}
	d.metrics = newMetrics(o.Registerer, d.endpoints, o.Queue.names)
	d.intake, d.endIntake = context.WithCancel(context.Background())
	d.sending, d.endSending = context.WithCancelCause(context.Background())
	d.recorder = &recorder{
		store: o.Store, replica: o.Replica, in: make(chan *outcome, recorderQueue),
		now: o.Now, logger: o.Logger, after: d.recorded,
	}
	if d.health, err = newHealthKeeper(o.Now); err != nil {
		return nil, err
	}
	d.herald = newHerald(o.Now, o.Logger)
	return d, nil
}

// Enqueue hands accepted events to the queue; it is the publisher's Enqueue.
// What the queue does not take, as while Redis is away, the sweep finds.
func (d *Dispatcher) Enqueue(ctx context.Context, accepted []*events.Stored) error {
	d.recent.add(accepted)
	texts := make([]string, len(accepted))
	for i, e := range accepted {
		texts[i] = e.Ref().String()
	}
	return d.enqueueChunks(ctx, d.Queue.inTurn, taskDispatch, "", texts, dispatchChunk)
}

// dispatchChunk is how many events one task carries at most.
const dispatchChunk = 100

// Start takes over what a former run of this replica left in flight and begins
// to deliver. publish takes the daemon's own events.
func (d *Dispatcher) Start(ctx context.Context, publish Publish) error {
	if err := d.giveBackWorkOf(ctx, d.Replica); err != nil {
		return fmt.Errorf("take over own work: %w", err)
	}
	if _, err := d.Store.beat(ctx, d.Replica, time.Hour); err != nil {
		return err
	}
	if err := d.primeSweep(ctx); err != nil {
		return err
	}
	records, endRecords := context.WithCancel(context.WithoutCancel(ctx))
	d.endRecords = endRecords
	d.recording.Go(func() { d.recorder.run(records) })
	loops, endLoops := context.WithCancel(context.WithoutCancel(ctx))
	d.endLoops = endLoops
	d.background.Go(func() { d.runClock(loops) })
	d.background.Go(func() { d.runHeart(loops) })
	d.background.Go(func() { d.runSweep(loops) })
	d.background.Go(func() { d.herald.run(loops, publish) })
	if err := d.Queue.start(d.handle); err != nil {
		d.Stop(ctx)
		return err
	}
	return nil
}

// errStopping is why attempts are cut short when the daemon stops.
var errStopping = fmt.Errorf("the daemon is stopping: %w", context.Canceled)

// Stop takes in no more work, lets running attempts finish until shortly before
// ctx ends, hands back the rest without counting an attempt, and writes what is
// known.
func (d *Dispatcher) Stop(ctx context.Context) {
	d.endIntake()
	d.Queue.stop()
	attempts, last, cancel := graces(ctx)
	defer cancel()
	waitFor(attempts, &d.working)
	d.endSending(errStopping)
	clean := waitFor(last, &d.working)
	if !clean { // Redis takes nothing: let go of who waits for the recorder
		d.endRecords()
		d.working.Wait()
	}
	close(d.recorder.in)
	clean = waitFor(last, &d.recording) && clean
	d.endRecords()
	d.recording.Wait()
	d.endLoops()
	d.background.Wait()
	if !clean {
		d.Logger.Error("stopped with outcomes that Redis did not take; their attempts will be repeated")
		return
	}
	if err := d.Store.forget(last, d.Replica); err != nil {
		d.Logger.Warn("replica not signed off", "error", err)
	}
}

// lastRecords is how long the last outcomes may take to be written.
const lastRecords = 3 * time.Second

// graces splits the time until ctx ends: attempts may finish in the first, the
// last lastRecords, or a third when there is little, are for their outcomes. A
// ctx that has ended leaves lastRecords.
func graces(ctx context.Context) (attempts, last context.Context, cancel func()) {
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

// target is a subscriber with what an attempt needs of it held ready.
type target struct {
	sub     *subscribers.Subscriber
	url     *url.URL
	signer  *webhook.Signer
	headers http.Header
	locked  error // why nothing can be sent to it; else nil
}

// request is an attempt to send an event there.
func (t *target) request(id string, body []byte) webhook.Request {
	return webhook.Request{
		URL: t.url, EventID: id, Body: body, Signer: t.signer, Headers: t.headers,
		Company: t.sub.CompanyUUID, Certificate: t.sub.Certificate, Locked: t.locked,
	}
}

// target prepares a subscriber of a registry's snapshot. Snapshots are never
// changed, so a subscriber that changes is another target.
func (d *Dispatcher) target(ctx context.Context, sub *subscribers.Subscriber) (*target, error) {
	if t, ok := d.targets.Get(sub); ok {
		return t, nil
	}
	u, err := url.Parse(sub.CallbackURL)
	if err != nil {
		return nil, fmt.Errorf("callback URL of %s: %w", sub.UUID, err)
	}
	t := &target{sub: sub, url: u, headers: make(http.Header, len(sub.Headers))}
	for _, h := range sub.Headers {
		t.headers[h.Name] = []string{h.Value.Reveal()}
	}
	t.locked = sub.Unusable()
	if t.locked == nil {
		t.signer, err = d.signer(ctx, sub)
	}
	if errors.Is(err, subscribers.ErrLocked) {
		t.locked, err = err, nil
	}
	if err != nil {
		return nil, err
	}
	if t.locked != nil {
		d.Logger.Error("deliveries wait: the subscriber's secrets do not open, check the encryption keys",
			"company_uuid", sub.CompanyUUID, "subscriber_uuid", sub.UUID, "error", t.locked)
	}
	d.targets.Add(sub, t)
	return t, nil
}

func (d *Dispatcher) signer(ctx context.Context, sub *subscribers.Subscriber) (*webhook.Signer, error) {
	if !d.SignEd25519 {
		return webhook.NewSigner(sub.Secrets, nil)
	}
	key, err := d.Subscribers.SigningKey(ctx, sub.CompanyUUID)
	if err != nil {
		return nil, err
	}
	return webhook.NewSigner(sub.Secrets, key)
}
