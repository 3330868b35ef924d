package dispatcher

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/subscribers/registry"
)

// recovered logs a recovered panic and returns it as an error; nil when nothing panicked.
// Without it, a panic would end this replica, and then each replica that takes the work
// over.
func (d *Dispatcher) recovered(cause any, doing string, r delivery.Ref) error {
	if cause == nil {
		return nil
	}
	d.metrics.panics.Inc()
	d.opts.Logger.Error("work panicked", "step", doing, "company_uuid", r.Company, "event_id", r.ID,
		"subscriber_uuid", r.Subscriber, "exception.message", fmt.Sprint(cause), "exception.stacktrace", string(debug.Stack()))
	return fmt.Errorf("%s: panic: %v", doing, cause)
}

// contained starts claimed work and quarantines work that panics: it would panic again on
// each claim.
func (d *Dispatcher) contained(ctx context.Context, replica string, r delivery.Ref, subscriber *uuid.UUID, begin func() error) (err error) {
	defer func() {
		if why := d.recovered(recover(), "match", r); why != nil {
			d.quarantine(ctx, replica, r, subscriber, why)
			err = nil
		}
	}()
	return begin()
}

// load reads the subscribers of companies.
func (d *Dispatcher) load(ctx context.Context, wanted []registry.CompanyVersion) (all []registry.Loaded, err error) {
	defer func() {
		if why := d.recovered(recover(), "load subscribers", delivery.Ref{}); why != nil {
			err = why
		}
	}()
	return d.opts.Registry.SubscribersOf(ctx, wanted...), nil
}

// persist writes outcomes until Redis accepts them. When that panics, each event is written
// on its own, and the event that panics is quarantined.
func (r *recorder) persist(ctx context.Context, todo []*pendingWrite) (written []*outcome) {
	defer func() {
		if why := r.d.recovered(recover(), "record", delivery.Ref{Ref: todo[0].event}); why != nil {
			written = r.apart(ctx, todo, why)
		}
	}()
	return r.writeAll(ctx, todo)
}

func (r *recorder) apart(ctx context.Context, todo []*pendingWrite, why error) (written []*outcome) {
	if len(todo) > 1 {
		for _, w := range todo {
			written = append(written, r.persist(ctx, []*pendingWrite{w})...)
		}
		return written
	}
	w := todo[0]
	matched := len(w.outcomes) == 0
	for _, o := range w.outcomes {
		if o.event != nil {
			matched = true
			continue
		}
		r.d.quarantine(ctx, w.replica, o.ref, &o.ref.Subscriber, why)
	}
	if matched {
		r.d.quarantine(ctx, w.replica, delivery.Ref{Ref: w.event}, nil, why)
	}
	return nil
}
