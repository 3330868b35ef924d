package dispatcher

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/endpoint"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/pause"
	"spendhook/internal/tracing"
	"spendhook/subscribers"
	"spendhook/subscribers/expression"
	"spendhook/subscribers/registry"
)

type work struct {
	ref        delivery.Ref
	base       *delivery.Record // the record before the attempt; Version 0 for a new delivery
	payload    requests.Payload
	source     *events.Stored // what the attempt makes the payload of, for a subscriber with a transform; else nil
	sequence   int64          // the event's number in its company
	accepted   time.Time      // when the event was accepted
	to         *requests.Target
	token      string         // under which the partition's owner has noted the delivery or the event
	event      *openEvent     // nil when the delivery was in its retry set
	backlogged bool           // the delivery must go through its retry set
	trace      tracing.Parent // parent of the span of the attempt
	place      endpoint.Delivery
	entered    time.Time // when the delivery asked for a place in memory
	asked      time.Time // when its turn was asked for
}

// openEvent is an event that is being matched, until each of its deliveries has an outcome. All outcomes go to the
// recorder of one shard, even if the partition moves to another shard meanwhile. Only that recorder uses left.
type openEvent struct {
	shard  string
	left   int         // outcomes still to be written
	first  int         // of these, those of deliveries that go through their retry set
	fanout int         // deliveries in all
	alone  bool        // the company has one enabled subscriber, or all are busy
	paused []uuid.UUID // the company's subscribers that are paused
	held   bool        // the event matches a disabled subscriber, or may match one that cannot be read
	// quarantined: an outcome could not be recorded. The event stays READY for the retry of the quarantine.
	quarantined bool
}

// take starts work. The work queue calls it as its Take option.
func (d *Dispatcher) take(ctx context.Context, batches []workqueue.Batch) {
	wanted := make([]registry.CompanyVersion, len(batches))
	for i, b := range batches {
		wanted[i] = registry.CompanyVersion{Company: b.Company, Version: b.Version}
	}
	for i, loaded := range d.opts.Registry.SubscribersOf(ctx, wanted...) {
		b := batches[i]
		for _, job := range b.Jobs {
			d.working.Go(func() { d.runJob(d.intake, b.Token, b.Company, job) })
		}
		b.Jobs = nil
		if loaded.Err != nil {
			d.requeueLater(b, loaded.Err)
			continue
		}
		d.quarantineDamaged(ctx, b.Company, loaded.Subscribers)
		filtered := slices.ContainsFunc(loaded.Subscribers, func(s *subscribers.Subscriber) bool { return s.Filter != "" || s.OrderedBy != "" })
		if filtered || slices.ContainsFunc(b.Events, func(e workqueue.Event) bool { return e.Suspect }) {
			d.matchLater(b, loaded.Subscribers)
		} else {
			for _, e := range b.Events {
				d.match(ctx, b, e, loaded.Subscribers)
			}
		}
		for _, c := range b.Deliveries {
			ref := delivery.Ref{Ref: events.Ref{Company: b.Company, ID: c.EventID}, Subscriber: c.Subscriber}
			d.start(ctx, b.Token, ref, &c.Subscriber, workqueue.Batch{Deliveries: []workqueue.Delivery{c}}, func() error {
				return d.takeDelivery(ctx, b, c, loaded.Subscribers)
			})
		}
	}
}

// match starts the deliveries of an event.
func (d *Dispatcher) match(ctx context.Context, b workqueue.Batch, e workqueue.Event, subs []*subscribers.Subscriber) {
	ref := delivery.Ref{Ref: events.Ref{Company: b.Company, ID: e.ID}}
	d.start(ctx, b.Token, ref, nil, workqueue.Batch{Events: []workqueue.Event{e}}, func() error {
		if e.Suspect {
			return d.takeSuspect(ctx, b, e, subs)
		}
		return d.takeEvent(ctx, b, e, subs)
	})
}

// maxDeaths is how many replicas may be lost while they match an event. It is more than one, since the loss may
// have another cause. The loss that made the event a suspect does not count: many events were in flight then.
const maxDeaths = 2

var errDeadly = errors.New("replicas were lost while they matched the event")

// takeSuspect is takeEvent for an event that a lost replica had in flight. An event that may have caused the loss
// of several replicas is quarantined, else it would end each one that takes it over.
func (d *Dispatcher) takeSuspect(ctx context.Context, b workqueue.Batch, e workqueue.Event, subs []*subscribers.Subscriber) error {
	deaths, err := d.Queue.BeginSuspect(ctx, b.Token, b.Company, e.ID)
	if err != nil {
		return err
	}
	if deaths >= maxDeaths {
		d.quarantine(ctx, b.Token, delivery.Ref{Ref: events.Ref{Company: b.Company, ID: e.ID}}, nil, errDeadly)
		return nil
	}
	defer func() { // also when a stop has interrupted the matching
		if err := d.Queue.EndSuspect(context.WithoutCancel(ctx), b.Company, e.ID); err != nil {
			d.opts.Logger.Warn("the event still counts as a cause of a loss", "event_id", e.ID, "exception.message", err)
		}
	}()
	return d.takeEvent(ctx, b, e, subs)
}

// matchLater matches events after the earlier events of the company, on a goroutine of the company. It does not
// wait: 100 filters of 2 ms each, or the round trips for suspects, would delay the turns of other companies. The company starts nothing until its events are matched.
func (d *Dispatcher) matchLater(b workqueue.Batch, subs []*subscribers.Subscriber) {
	for range b.Events {
		d.admission.BeginMatch(b.Company)
	}
	d.filtered.do(&d.working, b.Company, func() {
		for _, e := range b.Events {
			if d.intake.Err() == nil { // Stop requeues the other events
				d.match(d.intake, b, e, subs)
			}
			d.Queue.Again(d.admission.EndMatch(b.Company))
			d.Queue.Freed()
		}
	})
}

// companyQueues runs the functions of each company in order, on a goroutine of the company.
type companyQueues struct {
	mu      sync.Mutex
	waiting map[uuid.UUID][]func() // by company; a company without an entry has no goroutine
}

// do runs work after the company's earlier functions. It does not wait.
func (t *companyQueues) do(running *sync.WaitGroup, company uuid.UUID, work func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if waiting, busy := t.waiting[company]; busy {
		t.waiting[company] = append(waiting, work)
		return
	}
	if t.waiting == nil {
		t.waiting = make(map[uuid.UUID][]func())
	}
	t.waiting[company] = nil
	running.Go(func() {
		for ; work != nil; work = t.next(company) {
			work()
		}
	})
}

// next removes and returns the company's next function; nil when there is none.
func (t *companyQueues) next(company uuid.UUID) (work func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting[company]
	if len(waiting) == 0 {
		delete(t.waiting, company)
		return nil
	}
	t.waiting[company] = waiting[1:]
	return waiting[0]
}

// requeuePause is the pause before work that could not be started is requeued.
const requeuePause = 500 * time.Millisecond

// requeueLater requeues work that could not be started, after requeuePause. Until then
// the work stays noted as in flight, so that a shutdown requeues it too.
func (d *Dispatcher) requeueLater(b workqueue.Batch, why error) {
	d.opts.Logger.Error("work not started, requeuing it", "company_uuid", b.Company, "exception.message", why)
	d.working.Go(func() {
		if !pause.For(d.intake, requeuePause) {
			return
		}
		_ = pause.Until(d.intake, requeuePause, func() error { // Stop requeues the work
			return d.Queue.Requeue(d.intake, b)
		}, func(err error) {
			d.opts.Logger.Error("work not requeued, trying again", "company_uuid", b.Company, "exception.message", err)
		})
	})
}

// takeEvent starts a delivery of the event to each enabled subscriber that matches it
// and has no delivery of it yet.
func (d *Dispatcher) takeEvent(ctx context.Context, b workqueue.Batch, e workqueue.Event, subs []*subscribers.Subscriber) error {
	ref := events.Ref{Company: b.Company, ID: e.ID}
	stored, err := layout.Parse(ref, e.Value)
	if err != nil {
		d.quarantine(ctx, b.Token, delivery.Ref{Ref: ref}, nil, err)
		return nil
	}
	ev := &openEvent{shard: d.records.shardOf(b.Company), paused: b.Paused}
	span := d.dispatchSpan(stored)
	defer span.End()
	var todo []*work
	var matching []*subscribers.Subscriber
	candidate, bodies := expression.NewEvent(stored.Event), d.opts.Requests.Payloads(stored)
	for _, sub := range subs {
		if sub.Locked != nil { // its event types cannot be read: keep the event for a recover job
			ev.held = true
		}
		matches, err := sub.Matches(ctx, candidate)
		if ctx.Err() != nil { // the event was not matched with all of them
			return ctx.Err()
		}
		if err != nil {
			d.metrics.filterErrors.Inc()
		}
		known := slices.Contains(e.Known, sub.UUID)
		if matches && !known && !sub.Enabled {
			ev.held = true
			continue
		}
		if matches || known || sub.Locked != nil { // what a locked one wants is not known: its chain ends
			matching = append(matching, sub)
		}
		if !matches || known {
			continue
		}
		key, err := sub.OrderKey(ctx, candidate)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			d.metrics.filterErrors.Inc()
		}
		w := &work{
			ref: delivery.Ref{Ref: ref, Subscriber: sub.UUID}, base: delivery.NewRecord(*stored, key),
			sequence: stored.Sequence, accepted: stored.AcceptedAt, to: d.target(sub), token: b.Token, event: ev,
			backlogged: key != "" || slices.Contains(b.Backlogged, sub.UUID) || sub.Unverified(), trace: partOf(span, stored.Trace),
		}
		if err := w.encode(bodies, stored); err != nil {
			return err
		}
		todo = append(todo, w)
	}
	d.chain(stored, matching, todo)
	ev.fanout = len(e.Known) + len(todo)
	span.SetAttributes(attribute.Int("spendhook.deliveries", len(todo)))
	if ev.left = len(todo); ev.left == 0 {
		ev.left = 1
		d.record(&outcome{work: &work{ref: delivery.Ref{Ref: ref}, token: b.Token, event: ev}})
		return nil
	}
	ev.alone = d.alone(b.Company, subs)
	for _, w := range todo {
		if w.backlogged {
			ev.first++
		}
	}
	if ev.first == 0 && slices.ContainsFunc(subs, func(s *subscribers.Subscriber) bool { return s.Ordered || s.OrderedBy != "" }) {
		d.Queue.Placed(b.Token, b.Company, e.ID)
	}
	for _, w := range todo {
		d.admit(w)
	}
	return nil
}

// encode sets the payload. A transform waits for the attempt: it may take long, and other companies would wait too.
func (w *work) encode(bodies *requests.Payloads, e *events.Stored) (err error) {
	if w.to.Subscriber.Transform != "" {
		w.source = e
		return nil
	}
	w.payload, err = bodies.In(w.to.Subscriber.Format)
	return err
}

// chain notes in each delivery which event its subscriber matched before.
func (d *Dispatcher) chain(e *events.Stored, matching []*subscribers.Subscriber, todo []*work) {
	i := 0
	for at, previous := range d.chains.next(e.CompanyUUID, e.Sequence, matching) {
		if i < len(todo) && todo[i].ref.Subscriber == matching[at].UUID {
			todo[i].base.Previous = previous
			i++
			if previous == 0 {
				d.metrics.unlinked.Inc()
			} else {
				d.metrics.linked.Inc()
			}
		}
	}
}

// alone reports whether no delivery that waits in memory can delay another subscriber of the company.
func (d *Dispatcher) alone(company uuid.UUID, subs []*subscribers.Subscriber) bool {
	return d.admission.Busy(company, func(yield func(uuid.UUID) bool) {
		for _, sub := range subs {
			if sub.Enabled && !yield(sub.UUID) {
				return
			}
		}
	})
}

func (d *Dispatcher) cancel(w *work, reason string) {
	d.record(&outcome{work: w, apply: func(r delivery.Record, now time.Time) delivery.Record {
		return delivery.Cancel(r, reason, now)
	}})
}

// takeDelivery starts a delivery of a retry set, with the subscriber's current
// settings.
func (d *Dispatcher) takeDelivery(ctx context.Context, b workqueue.Batch, c workqueue.Delivery, subs []*subscribers.Subscriber) error {
	ref := delivery.Ref{Ref: events.Ref{Company: b.Company, ID: c.EventID}, Subscriber: c.Subscriber}
	w := &work{ref: ref, token: b.Token, asked: b.Asked}
	var err error
	if w.base, err = delivery.Decode(c.Record); err != nil {
		d.quarantine(ctx, b.Token, ref, &c.Subscriber, err)
		return nil
	}
	if c.Value == "" {
		d.cancel(w, delivery.ReasonExpired)
		return nil
	}
	stored, err := layout.Parse(ref.Ref, c.Value)
	if err == nil && stored.State == events.Compacted {
		err = events.ErrCompacted
	}
	if err != nil {
		d.quarantine(ctx, b.Token, ref, &c.Subscriber, err)
		return nil
	}
	i := slices.IndexFunc(subs, func(s *subscribers.Subscriber) bool { return s.UUID == c.Subscriber })
	switch {
	case i < 0:
		d.cancel(w, delivery.ReasonSubscriberDeleted)
		return nil
	case !subs[i].Enabled: // disabled since its turn
		d.record(&outcome{work: w, apply: delivery.Requeue})
		return nil
	}
	w.sequence, w.accepted, w.trace = stored.Sequence, stored.AcceptedAt, stored.Trace
	w.to = d.target(subs[i])
	if err := w.encode(d.opts.Requests.Payloads(stored), stored); err != nil {
		return err
	}
	d.admit(w)
	return nil
}

func (d *Dispatcher) quarantine(ctx context.Context, token string, r delivery.Ref, subscriber *uuid.UUID, why error) {
	d.metrics.quarantined.Inc()
	d.opts.Logger.Error("event or delivery quarantined",
		"company_uuid", r.Company, "event_id", r.ID, "exception.message", why)
	e := quarantine.Entry{Company: r.Company, EventID: r.ID, Subscriber: subscriber}
	move := func(ctx context.Context) error {
		if err := d.Quarantine.Move(ctx, e); err != nil {
			return err
		}
		if subscriber == nil {
			d.Queue.Matched(token, r.Company, r.ID, 0)
		} else {
			d.Queue.Ended(token, r.Company, *subscriber, 0) // the next one with its order key may be due
		}
		return nil
	}
	if move(ctx) == nil || d.intake.Err() != nil {
		return
	}
	d.working.Go(func() {
		_ = pause.Until(d.intake, requeuePause, func() error { // Stop leaves the work to the next owner
			return move(d.intake)
		}, func(err error) {
			d.opts.Logger.Error("damaged work not quarantined, trying again", "event_id", r.ID, "exception.message", err)
		})
	})
}
