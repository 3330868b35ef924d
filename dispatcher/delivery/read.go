package delivery

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/events"
	"spendhook/events/layout"
)

// Delivery reads one delivery of a company with its attempts; ErrNotFound when
// there is none.
func (s *Store) Delivery(ctx context.Context, company uuid.UUID, id string) (Delivery, error) {
	r, err := ParseID(company, id)
	if err != nil {
		return Delivery{}, err
	}
	records, err := s.Get(ctx, []Ref{r})
	if err != nil {
		return Delivery{}, err
	}
	if records[0] == nil {
		return Delivery{}, ErrNotFound
	}
	return Delivery{r, *records[0]}, nil
}

// OfEvent reads all deliveries of an event, by subscriber; none when it is not
// matched yet or unknown.
func (s *Store) OfEvent(ctx context.Context, r events.Ref) ([]Delivery, error) {
	groups, _, err := s.ofEvents(ctx, []events.Ref{r})
	if err != nil {
		return nil, err
	}
	return groups[0], nil
}

// EventStatus sums up where an event's deliveries stand.
type EventStatus string

// The event statuses.
const (
	EventPending      EventStatus = "PENDING"       // not matched yet, or some delivery has attempts ahead
	EventDelivered    EventStatus = "DELIVERED"     // every delivery ended, at least one delivered, none dead
	EventDead         EventStatus = "DEAD"          // every delivery ended, at least one dead
	EventCancelled    EventStatus = "CANCELLED"     // every delivery was cancelled
	EventHeld         EventStatus = "HELD"          // matched, and only disabled subscribers were to receive it
	EventNoSubscriber EventStatus = "NO_SUBSCRIBER" // matched with no subscriber
)

// EventSummary sums up an event's deliveries.
type EventSummary struct {
	Status  EventStatus
	Matches bool // a filter lets one of its deliveries through
	Work    int  // that it was to read its deliveries, in index entries
}

// SumUp sums up events, in their order. Of f, what is about a company and where a list
// goes on is left aside.
func (s *Store) SumUp(ctx context.Context, refs []events.Ref, f Filter) ([]EventSummary, error) {
	counts, err := s.counts(ctx, refs)
	if err != nil {
		return nil, err
	}
	out := make([]EventSummary, 0, len(refs))
	for len(out) < len(refs) { // as many at a time as may be loaded
		first := len(out)
		some := refs[first : first+fitting(counts[first:])]
		unmatched, err := s.Unmatched(ctx, some)
		if err != nil {
			return nil, err
		}
		groups, held, err := s.ofEvents(ctx, some)
		if err != nil {
			return nil, err
		}
		for i, group := range groups {
			out = append(out, EventSummary{
				Status: sumUp(unmatched[i], held[i], group), Work: len(group) / perEntry,
				Matches: slices.ContainsFunc(group, func(d Delivery) bool { return f.matches(&d) }),
			})
		}
	}
	return out, nil
}

func sumUp(unmatched, held bool, deliveries []Delivery) EventStatus {
	var live, dead, delivered bool
	for _, d := range deliveries {
		live = live || d.Status.Live()
		dead = dead || d.Status == StatusDead
		delivered = delivered || d.Status == StatusDelivered
	}
	switch {
	case unmatched || live:
		return EventPending
	case dead:
		return EventDead
	case delivered:
		return EventDelivered
	case len(deliveries) > 0:
		return EventCancelled
	case held:
		return EventHeld
	}
	return EventNoSubscriber
}

// Unmatched reports which events wait for their subscribers to be matched.
func (s *Store) Unmatched(ctx context.Context, refs []events.Ref) ([]bool, error) {
	pipe := s.client.Pipeline()
	states := make([]*redis.StringCmd, len(refs))
	for i, r := range refs {
		states[i] = pipe.GetRange(ctx, layout.EventKey(r), 0, 0)
	}
	if pipe.Len() == 0 {
		return nil, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("read event states: %w", err)
	}
	out := make([]bool, len(refs))
	for i, state := range states {
		out[i] = state.Val() == string(rune(events.Ready))
	}
	return out, nil
}

// Waiting counts the deliveries in the queue of a subscriber's endpoint that are due,
// those of an ordered subscriber all. Of several subscribers it is the most.
func (s *Store) Waiting(ctx context.Context, company uuid.UUID, subscribers ...uuid.UUID) (most int64, err error) {
	pipe := s.client.Pipeline()
	waiting := make([]func() int64, len(subscribers))
	for i, sub := range subscribers {
		waiting[i] = s.askDue(ctx, pipe, company, sub)
	}
	if pipe.Len() == 0 {
		return 0, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, fmt.Errorf("count waiting deliveries: %w", err)
	}
	for _, count := range waiting {
		most = max(most, count())
	}
	return most, nil
}

// askDue counts what is due in an endpoint queue once pipe was sent.
func (s *Store) askDue(ctx context.Context, pipe redis.Pipeliner, company, subscriber uuid.UUID) (due func() int64) {
	queue, now := workqueue.EndpointQueueKey(company, subscriber), strconv.FormatInt(s.opts.Now().UnixMilli(), 10)
	all := pipe.ZCard(ctx, queue)
	later := pipe.ZCount(ctx, queue, "("+now, "("+workqueue.InOrder)
	return func() int64 { return all.Val() - later.Val() }
}
