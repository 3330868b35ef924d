package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/subscribers"
)

// quarantineDamaged adds a company's damaged subscribers to the quarantine. Their deliveries
// wait, even if the quarantine fails.
func (d *Dispatcher) quarantineDamaged(ctx context.Context, company uuid.UUID, subs []*subscribers.Subscriber) {
	var damaged []uuid.UUID
	for _, sub := range subs {
		if sub.Locked != nil {
			damaged = append(damaged, sub.UUID)
		}
	}
	if len(damaged) == 0 {
		return
	}
	added, err := d.Quarantine.AddSubscribers(ctx, company, damaged, d.opts.Now())
	if err != nil {
		d.opts.Logger.Error("damaged subscribers not quarantined, trying again with the next work of their company", "company_uuid", company, "exception.message", err)
	}
	for _, id := range added {
		d.metrics.quarantined.Inc()
		d.opts.Logger.Error("stored subscriber is damaged and was quarantined", "company_uuid", company, "subscriber_uuid", id)
	}
}

// contain runs work, logs a panic and returns it as an error. Otherwise the panic would end this
// replica, and then each replica that takes the work over.
func (d *Dispatcher) contain(step string, r delivery.Ref, work func()) (panicked error) {
	defer func() {
		if cause := recover(); cause != nil {
			d.opts.Logger.Error("work panicked", "step", step, "company_uuid", r.Company, "event_id", r.ID,
				"subscriber_uuid", r.Subscriber, "exception.message", fmt.Sprint(cause), "exception.stacktrace", string(debug.Stack()))
			panicked = fmt.Errorf("%s: panic: %v", step, cause)
		}
	}()
	work()
	return nil
}

// start starts work. It requeues work that fails, and quarantines work that panics: it would
// panic again in each turn.
func (d *Dispatcher) start(ctx context.Context, token string, r delivery.Ref, subscriber *uuid.UUID, work workqueue.Batch, begin func() error) {
	var err error
	if why := d.contain("match", r, func() { err = begin() }); why != nil {
		d.quarantine(ctx, token, r, subscriber, why)
	} else if err != nil {
		work.Company, work.Token = r.Company, token
		d.requeueLater(work, err)
	}
}

// tryContained calls try. If try panics, it tries each write on its own, and quarantines the event of
// the write that panics.
func (r *recorder) tryContained(ctx context.Context, todo []*pendingWrite) (t tried) {
	why := r.d.contain("record", delivery.Ref{Ref: todo[0].Event}, func() { t = r.try(ctx, todo) })
	switch {
	case why == nil:
	case len(todo) == 1:
		r.quarantineWrite(ctx, todo[0], why)
		t = tried{finished: todo}
	default:
		for _, w := range todo {
			one := r.tryContained(ctx, []*pendingWrite{w})
			t.again, t.finished = append(t.again, one.again...), append(t.finished, one.finished...)
			t.written, t.failed = append(t.written, one.written...), cmp.Or(t.failed, one.failed)
		}
	}
	return t
}

// quarantineWrite quarantines the event of a write, the deliveries of a write, or both.
func (r *recorder) quarantineWrite(ctx context.Context, w *pendingWrite, why error) {
	matched := len(w.outcomes) == 0
	for _, o := range w.outcomes {
		if o.event != nil {
			matched, o.event.quarantined = true, true
			continue
		}
		r.d.quarantine(ctx, w.Token, o.ref, &o.ref.Subscriber, why)
	}
	if matched {
		r.d.quarantine(ctx, w.Token, delivery.Ref{Ref: w.Event}, nil, why)
	}
}
