package redelivery

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/lifecycle"
	"spendhook/events"
	"spendhook/subscribers"
	"spendhook/subscribers/filter"
)

// casTries bounds the retries of a change while the delivery changes meanwhile.
const casTries = 5

var errContended = errors.New("the delivery keeps changing")

// Retry attempts a delivery again at once, with a fresh schedule, whatever its
// status. delivery.ErrNotFound, ErrInFlight while an attempt is under way,
// ErrSubscriberGone or ErrSubscriberDisabled.
func (s *Service) Retry(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error) {
	d, err := s.Deliveries.Delivery(ctx, company, id)
	if err != nil {
		return delivery.Delivery{}, err
	}
	if _, err := s.reachable(ctx, d.Company, d.Subscriber); err != nil {
		return delivery.Delivery{}, err
	}
	return s.restart(ctx, d.Ref, &d.Record)
}

// Replay sends an event again to every enabled subscriber that wants it now, or
// only to those named, each with a fresh schedule; the webhook-id stays the
// event's. Deliveries with an attempt under way are left as they are. The error is an
// UnknownSubscribersError when only names subscribers that the company does not have,
// events.ErrNotFound when there is no such event, events.ErrCompacted when its
// payload is not kept any more.
func (s *Service) Replay(ctx context.Context, r events.Ref, only []uuid.UUID) ([]delivery.Delivery, error) {
	stored, err := s.Events.Get(ctx, r)
	if err != nil {
		return nil, err
	}
	if stored.State == events.Compacted {
		return nil, events.ErrCompacted
	}
	subs, err := s.Registry.Current(ctx, r.Company)
	if err != nil {
		return nil, err
	}
	if err := allKnown(subs, only); err != nil {
		return nil, err
	}
	var out []delivery.Delivery
	candidate := filter.NewEvent(stored.Event)
	for _, sub := range subs {
		matches, _ := sub.Matches(candidate) // explain says why one fails
		if !sub.Enabled || !matches || len(only) > 0 && !slices.Contains(only, sub.UUID) {
			continue
		}
		d, err := s.replayTo(ctx, delivery.Ref{Ref: r, Subscriber: sub.UUID}, stored)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// UnknownSubscribersError names subscribers that the company does not have.
type UnknownSubscribersError []uuid.UUID

// Error lists at most ten of them.
func (e UnknownSubscribersError) Error() string {
	names := make([]string, 0, 10)
	for _, id := range e[:min(len(e), cap(names))] {
		names = append(names, id.String())
	}
	return strings.Join(names, ", ")
}

func allKnown(subs []*subscribers.Subscriber, named []uuid.UUID) error {
	known := make(map[uuid.UUID]bool, len(subs))
	for _, sub := range subs {
		known[sub.UUID] = true
	}
	var unknown UnknownSubscribersError
	for _, id := range named {
		if !known[id] {
			unknown = append(unknown, id)
		}
	}
	if len(unknown) > 0 {
		return unknown
	}
	return nil
}

func (s *Service) replayTo(ctx context.Context, r delivery.Ref, stored events.Stored) (delivery.Delivery, error) {
	records, err := s.Deliveries.Get(ctx, []delivery.Ref{r})
	if err != nil {
		return delivery.Delivery{}, err
	}
	rec := records[0]
	if rec == nil {
		rec = delivery.NewRecord(stored)
	}
	d, err := s.restart(ctx, r, rec)
	if errors.Is(err, delivery.ErrInFlight) {
		return delivery.Delivery{Ref: r, Record: *rec}, nil
	}
	return d, err
}

// restart makes a delivery due at once with a fresh schedule.
func (s *Service) restart(ctx context.Context, r delivery.Ref, rec *delivery.Record) (delivery.Delivery, error) {
	for range casTries {
		next := lifecycle.Restart(*rec, delivery.ReasonReplay, s.Now())
		all, err := s.write(ctx, writeOf(r, rec, &next))
		if err != nil {
			return delivery.Delivery{}, err
		}
		found := all[0]
		switch {
		case found == nil:
			return delivery.Delivery{Ref: r, Record: next}, nil
		case found.Compacted:
			return delivery.Delivery{}, events.ErrCompacted
		case found.InFlight:
			return delivery.Delivery{}, delivery.ErrInFlight
		case found.Damaged, found.Record.Version == 0:
			return delivery.Delivery{}, delivery.ErrNotFound
		}
		rec = found.Record
	}
	return delivery.Delivery{}, errContended
}
