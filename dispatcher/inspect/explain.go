package inspect

import (
	"context"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/subscribers"
	"spendhook/subscribers/filter"
)

// Verdict is the outcome of an event for one subscriber.
type Verdict string

// The verdicts of Explain.
const (
	VerdictDelivered     Verdict = "DELIVERED"
	VerdictPending       Verdict = "PENDING"
	VerdictDead          Verdict = "DEAD"
	VerdictCancelled     Verdict = "CANCELLED"
	VerdictNotSubscribed Verdict = "NOT_SUBSCRIBED" // the subscriber's event types do not include this one
	VerdictFiltered      Verdict = "FILTERED"       // its filter does not match
	VerdictDisabled      Verdict = "DISABLED"       // the subscriber is disabled; a recover job sends the event
	VerdictCreatedLater  Verdict = "CREATED_LATER"  // the subscriber was registered after the event
	VerdictNotMatched    Verdict = "NOT_MATCHED"    // the subscriber matches the event now, but did not at matching time
)

// Detail is the verdict as a sentence.
func (v Verdict) Detail() string { return details[v] }

var details = map[Verdict]string{
	VerdictDelivered:     "The subscriber acknowledged the event.",
	VerdictPending:       "The event is on its way.",
	VerdictDead:          "The delivery was given up; retry it, or recover the subscriber.",
	VerdictCancelled:     "The delivery was cancelled.",
	VerdictNotSubscribed: "The subscriber's events do not include this type.",
	VerdictFiltered:      "The filter of the subscriber does not match the event.",
	VerdictDisabled:      "The subscriber is disabled; enable it and recover what it missed.",
	VerdictCreatedLater:  "The subscriber was created after the event was accepted; replay sends it.",
	VerdictNotMatched:    "The subscriber did not want this type when the event was dispatched; replay sends it.",
}

// Explanation is the outcome of an event for one subscriber of its company, and why.
type Explanation struct {
	Subscriber *subscribers.Subscriber // never changed
	Verdict    Verdict
	Delivery   *delivery.Delivery // nil when there is none
	Err        error              // why its filter failed on the event; else nil
}

// Explain says for every subscriber of the event's company whether it received
// the event, or why not. events.ErrNotFound when there is no such event.
func (i *Inspector) Explain(ctx context.Context, r events.Ref) ([]Explanation, error) {
	stored, err := i.opts.Events.Get(ctx, r)
	if err != nil {
		return nil, err
	}
	if stored.State == events.Compacted {
		return nil, events.ErrCompacted
	}
	subs, err := i.opts.Registry.Current(ctx, r.Company)
	if err != nil {
		return nil, err
	}
	deliveries, err := i.opts.Deliveries.OfEvent(ctx, r)
	if err != nil {
		return nil, err
	}
	bySubscriber := make(map[uuid.UUID]*delivery.Delivery, len(deliveries))
	for n := range deliveries {
		bySubscriber[deliveries[n].Subscriber] = &deliveries[n]
	}
	out := make([]Explanation, len(subs))
	candidate := filter.NewEvent(stored.Event)
	for n, sub := range subs {
		del := bySubscriber[sub.UUID]
		matches, err := sub.Matches(candidate)
		out[n] = Explanation{Subscriber: sub, Delivery: del, Err: err, Verdict: explain(stored, sub, del, matches)}
	}
	return out, nil
}

func explain(e events.Stored, sub *subscribers.Subscriber, del *delivery.Delivery, matches bool) Verdict {
	switch {
	case del != nil && del.Status.Live():
		return VerdictPending
	case del != nil:
		return Verdict(del.Status)
	case !sub.Wants(e.Type):
		return VerdictNotSubscribed
	case !matches:
		return VerdictFiltered
	case !sub.Enabled:
		return VerdictDisabled
	case e.State == events.Ready:
		return VerdictPending
	case sub.CreatedAt.After(e.AcceptedAt):
		return VerdictCreatedLater
	}
	return VerdictNotMatched
}
