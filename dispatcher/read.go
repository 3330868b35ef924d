package dispatcher

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/subscribers"
)

// Deliveries lists deliveries, newest first; see DeliveryPage for how pages
// end. ErrBadCursor when the cursor is not of this list.
func (d *Dispatcher) Deliveries(ctx context.Context, f DeliveryFilter) (DeliveryPage, error) {
	return d.Store.list(ctx, f)
}

// Delivery reads one delivery of a company with its attempts; ErrNotFound when
// there is none.
func (d *Dispatcher) Delivery(ctx context.Context, company uuid.UUID, id string) (Delivery, error) {
	r, err := parseDeliveryID(company, id)
	if err != nil {
		return Delivery{}, err
	}
	rec, err := d.record(ctx, r)
	if err != nil {
		return Delivery{}, err
	}
	return rec.delivery(r), nil
}

func (d *Dispatcher) record(ctx context.Context, r ref) (*record, error) {
	recs, err := d.Store.get(ctx, []ref{r})
	if err != nil {
		return nil, err
	}
	if recs[0] == nil {
		return nil, ErrNotFound
	}
	return recs[0], nil
}

// EventDeliveries reads all deliveries of an event, by subscriber; none when
// it is not dispatched yet or unknown.
func (d *Dispatcher) EventDeliveries(ctx context.Context, r events.Ref) ([]Delivery, error) {
	groups, err := d.Store.ofEvents(ctx, []events.Ref{r})
	if err != nil {
		return nil, err
	}
	return groups[0], nil
}

// EventStatus sums up where an event's deliveries stand.
type EventStatus string

// The event statuses.
const (
	EventPending      EventStatus = "PENDING"       // not dispatched yet, or some delivery has attempts ahead
	EventDelivered    EventStatus = "DELIVERED"     // every delivery ended, at least one delivered, none dead
	EventDead         EventStatus = "DEAD"          // every delivery ended, at least one dead
	EventCancelled    EventStatus = "CANCELLED"     // every delivery was cancelled
	EventNoSubscriber EventStatus = "NO_SUBSCRIBER" // dispatched, and nobody was to receive it
)

// EventStatus sums up events, in their order, in two round trips.
func (d *Dispatcher) EventStatus(ctx context.Context, refs []events.Ref) ([]EventStatus, error) {
	waiting, err := d.Store.undispatched(ctx, refs)
	if err != nil {
		return nil, err
	}
	groups, err := d.Store.ofEvents(ctx, refs)
	if err != nil {
		return nil, err
	}
	out := make([]EventStatus, len(refs))
	for i := range refs {
		out[i] = sumUp(waiting[i], groups[i])
	}
	return out, nil
}

func sumUp(waiting bool, deliveries []Delivery) EventStatus {
	var live, dead, delivered bool
	for _, d := range deliveries {
		live = live || d.Status.Live()
		dead = dead || d.Status == StatusDead
		delivered = delivered || d.Status == StatusDelivered
	}
	switch {
	case waiting || live:
		return EventPending
	case dead:
		return EventDead
	case delivered:
		return EventDelivered
	case len(deliveries) > 0:
		return EventCancelled
	}
	return EventNoSubscriber
}

// Outcome says what came of an event for one subscriber.
type Outcome string

// The outcomes of Explain.
const (
	OutcomeDelivered     Outcome = "DELIVERED"
	OutcomePending       Outcome = "PENDING"
	OutcomeDead          Outcome = "DEAD"
	OutcomeCancelled     Outcome = "CANCELLED"
	OutcomeNotSubscribed Outcome = "NOT_SUBSCRIBED" // its events do not include this type
	OutcomeDisabled      Outcome = "DISABLED"       // it is disabled; recover sends what it missed
	OutcomeCreatedLater  Outcome = "CREATED_LATER"  // it was registered after the event
	OutcomeNotMatched    Outcome = "NOT_MATCHED"    // it wants the event now, but did not when it was dispatched
)

// Explanation is what came of an event for one subscriber of its company.
type Explanation struct {
	Subscriber *subscribers.Subscriber // never changed
	Outcome    Outcome
	Delivery   *Delivery // nil when there is none
}

// Explain says for every subscriber of the event's company whether it received
// the event, or why not. events.ErrNotFound when there is no such event.
func (d *Dispatcher) Explain(ctx context.Context, r events.Ref) ([]Explanation, error) {
	stored, err := d.Events.Get(ctx, r)
	if err != nil {
		return nil, err
	}
	subs, err := d.current(ctx, r.Company)
	if err != nil {
		return nil, err
	}
	waiting, err := d.Store.undispatched(ctx, []events.Ref{r})
	if err != nil {
		return nil, err
	}
	deliveries, err := d.EventDeliveries(ctx, r)
	if err != nil {
		return nil, err
	}
	bySubscriber := make(map[uuid.UUID]*Delivery, len(deliveries))
	for i := range deliveries {
		bySubscriber[deliveries[i].SubscriberUUID] = &deliveries[i]
	}
	out := make([]Explanation, len(subs))
	for i, sub := range subs {
		del := bySubscriber[sub.UUID]
		out[i] = Explanation{Subscriber: sub, Delivery: del, Outcome: explain(stored, sub, del, waiting[0])}
	}
	return out, nil
}

func explain(e events.Stored, sub *subscribers.Subscriber, del *Delivery, waiting bool) Outcome {
	switch {
	case del != nil && del.Status.Live():
		return OutcomePending
	case del != nil:
		return Outcome(del.Status)
	case !sub.Wants(e.Type):
		return OutcomeNotSubscribed
	case !sub.Enabled:
		return OutcomeDisabled
	case waiting:
		return OutcomePending
	case sub.CreatedAt.After(e.AcceptedAt):
		return OutcomeCreatedLater
	}
	return OutcomeNotMatched
}

// current is all subscribers of a company as they are now.
func (d *Dispatcher) current(ctx context.Context, company uuid.UUID) ([]*subscribers.Subscriber, error) {
	version, err := d.Store.subscriberVersion(ctx, company)
	if err != nil {
		return nil, err
	}
	return d.Registry.Subscribers(ctx, company, version)
}

// subscriber finds one subscriber of a company as it is now.
func (d *Dispatcher) subscriber(ctx context.Context, company, id uuid.UUID) (*subscribers.Subscriber, error) {
	subs, err := d.current(ctx, company)
	if err != nil {
		return nil, err
	}
	for _, s := range subs {
		if s.UUID == id {
			return s, nil
		}
	}
	return nil, ErrSubscriberGone
}

// Stats counts a subscriber's deliveries that are kept.
type Stats struct {
	Total, Live, Dead int64      // Live: PENDING, DELIVERING, RETRYING, held ones included
	OldestLiveAt      *time.Time // when the oldest live delivery was created; nil when there is none
}

// Stats counts a subscriber's deliveries, in one round trip.
func (d *Dispatcher) Stats(ctx context.Context, company, subscriber uuid.UUID) (Stats, error) {
	return d.Store.stats(ctx, company, subscriber)
}
