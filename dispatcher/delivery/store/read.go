package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
)

// Delivery reads one delivery of a company with its attempts; ErrNotFound when
// there is none.
func (s *Store) Delivery(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error) {
	ref, err := delivery.ParseID(company, id)
	if err != nil {
		return delivery.Delivery{}, err
	}
	records, err := s.Get(ctx, []delivery.Ref{ref})
	if err != nil {
		return delivery.Delivery{}, err
	}
	if records[0] == nil {
		return delivery.Delivery{}, delivery.ErrNotFound
	}
	return delivery.Delivery{Ref: ref, Record: *records[0]}, nil
}

// OfEvent reads all deliveries of an event, by subscriber; none when it is not
// matched yet or unknown.
func (s *Store) OfEvent(ctx context.Context, ref events.Ref) ([]delivery.Delivery, error) {
	groups, _, err := s.ofEvents(ctx, []events.Ref{ref})
	if err != nil {
		return nil, err
	}
	return groups[0], nil
}

// EventStatus summarises the statuses of an event's deliveries.
type EventStatus string

// The event statuses.
const (
	EventPending      EventStatus = "PENDING"       // not matched yet, or some delivery has attempts ahead
	EventDelivered    EventStatus = "DELIVERED"     // every delivery ended, at least one delivered, none dead
	EventDead         EventStatus = "DEAD"          // every delivery ended, at least one dead
	EventCancelled    EventStatus = "CANCELLED"     // every delivery was cancelled
	EventHeld         EventStatus = "HELD"          // matched only disabled subscribers
	EventNoSubscriber EventStatus = "NO_SUBSCRIBER" // matched with no subscriber
)

// EventSummary sums up an event's deliveries.
type EventSummary struct {
	Status  EventStatus
	Matches bool // one of its deliveries matches the filter
	Work    int  // cost of reading its deliveries, in index entries
}

// SumUp summarises events, in their order. It ignores company, cursor and size of f.
func (s *Store) SumUp(ctx context.Context, refs []events.Ref, f Filter) ([]EventSummary, error) {
	states, err := pipeline.Readable(ctx, s.client, refs, func(pipe redis.Pipeliner, r events.Ref) *redis.StringCmd {
		return pipe.GetRange(ctx, layout.EventKey(r), 0, 0)
	}) // before the deliveries: a matched event has all its deliveries
	if err != nil {
		return nil, fmt.Errorf("read event states: %w", err)
	}
	out := make([]EventSummary, 0, len(refs))
	for len(out) < len(refs) {
		groups, held, err := s.ofEvents(ctx, refs[len(out):])
		if err != nil {
			return nil, err
		}
		for i, group := range groups {
			unmatched := states[len(out)].Val() == string(rune(events.Ready))
			out = append(out, EventSummary{
				Status: sumUp(unmatched, held[i], group), Work: len(group) / perEntry,
				Matches: slices.ContainsFunc(group, func(d delivery.Delivery) bool { return f.matches(&d) }),
			})
		}
	}
	return out, nil
}

func sumUp(unmatched, held bool, deliveries []delivery.Delivery) EventStatus {
	var live, dead, delivered bool
	for _, d := range deliveries {
		live = live || d.Status.Live()
		dead = dead || d.Status == delivery.StatusDead
		delivered = delivered || d.Status == delivery.StatusDelivered
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

// Ahead returns for each delivery the event whose delivery, which has the same order key, must end first; "" for none. It
// makes one round trip.
func (s *Store) Ahead(ctx context.Context, list []*delivery.Delivery) ([]string, error) {
	pipe := s.client.Pipeline()
	first, own := make([]*redis.StringSliceCmd, len(list)), make([]*redis.FloatCmd, len(list))
	for i, d := range list {
		same := queues.OrderKeySet(d.Company, d.Subscriber, d.OrderKey)
		first[i], own[i] = pipe.ZRange(ctx, same, 0, 0), pipe.ZScore(ctx, same, d.ID)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read the order of deliveries: %w", err)
	}
	out := make([]string, len(list))
	for i, d := range list {
		if ids := first[i].Val(); own[i].Err() == nil && len(ids) > 0 && ids[0] != d.ID {
			out[i] = ids[0]
		}
	}
	return out, nil
}

// Stats are the numbers of a subscriber's deliveries that are kept.
type Stats struct {
	Total, Live, Dead int64      // Live: PENDING, DELIVERING, RETRYING, held ones included
	Waiting           int64      // of Live: in the retry set, and due
	OldestLiveAt      *time.Time // when the oldest live delivery was created; nil when there is none
	NextAt            *time.Time // when the first delivery in the retry set is due; nil without one, and for an ordered subscriber
}

// Stats counts the deliveries of subscribers of a company, in their order and in one round trip.
func (s *Store) Stats(ctx context.Context, company uuid.UUID, subs ...uuid.UUID) ([]Stats, error) {
	pipe, now := s.client.Pipeline(), strconv.FormatInt(s.opts.Now().UnixMilli(), 10)
	answers := make([]func() Stats, len(subs))
	for i, sub := range subs {
		all := pipe.ZCard(ctx, layout.OfSubscriberKey(company, sub))
		rest := askStats(ctx, pipe, company, &sub)
		queue := queues.RetrySetKey(company, sub)
		queued, later := pipe.ZCard(ctx, queue), pipe.ZCount(ctx, queue, "("+now, "("+queues.InOrder)
		first := pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: queue, ByScore: true, Start: "-inf", Stop: "(" + queues.InOrder, Count: 1,
		})
		state := pipe.HMGet(ctx, queues.EndpointKey(company, sub), "until")
		answers[i] = func() Stats {
			out := rest()
			out.Total = all.Val()
			if state.Val()[0] == queues.InOrder { // the subscriber is disabled: nothing is due
				return out
			}
			out.Waiting = queued.Val() - later.Val()
			for _, z := range first.Val() {
				out.NextAt = new(time.UnixMilli(int64(z.Score)).UTC())
			}
			return out
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("count deliveries: %w", err)
	}
	stats := make([]Stats, len(subs))
	for i, answer := range answers {
		stats[i] = answer()
	}
	return stats, nil
}

// CompanyStats counts the live and dead deliveries of a company, in one round trip;
// the other counts are 0.
func (s *Store) CompanyStats(ctx context.Context, company uuid.UUID) (Stats, error) {
	pipe := s.client.Pipeline()
	answer := askStats(ctx, pipe, company, nil)
	if _, err := pipe.Exec(ctx); err != nil {
		return Stats{}, fmt.Errorf("count deliveries: %w", err)
	}
	return answer(), nil
}

// askStats queues the reads of the lists of live and dead deliveries.
func askStats(ctx context.Context, pipe redis.Pipeliner, company uuid.UUID, sub *uuid.UUID) (answer func() Stats) {
	live := indexKey(liveIndex, company, sub)
	count, dead := pipe.ZCard(ctx, live), pipe.ZCard(ctx, indexKey(deadIndex, company, sub))
	oldest := pipe.ZRangeWithScores(ctx, live, 0, 0)
	return func() Stats {
		out := Stats{Live: count.Val(), Dead: dead.Val()}
		for _, z := range oldest.Val() {
			out.OldestLiveAt = new(time.UnixMilli(int64(z.Score)).UTC())
		}
		return out
	}
}
