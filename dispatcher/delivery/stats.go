package delivery

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/events/layout"
)

// Stats counts a subscriber's deliveries, in one round trip.
func (s *Store) Stats(ctx context.Context, company, sub uuid.UUID) (Stats, error) {
	all, err := s.StatsOf(ctx, company, sub)
	if err != nil {
		return Stats{}, err
	}
	return all[0], nil
}

// StatsOf is Stats for several subscribers of a company, in their order and in one
// round trip.
func (s *Store) StatsOf(ctx context.Context, company uuid.UUID, subs ...uuid.UUID) ([]Stats, error) {
	if len(subs) == 0 {
		return nil, nil
	}
	pipe := s.client.Pipeline()
	answers := make([]func() Stats, len(subs))
	for i, sub := range subs {
		all := pipe.ZCard(ctx, layout.OfSubscriberKey(company, sub))
		rest := askStats(ctx, pipe, liveOfSubscriber(company, sub), deadOfSubscriber(company, sub))
		waiting := s.askDue(ctx, pipe, company, sub)
		first := pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: workqueue.EndpointQueueKey(company, sub), ByScore: true, Start: "-inf", Stop: "(" + workqueue.InOrder, Count: 1,
		})
		answers[i] = func() Stats {
			out := rest()
			out.Total, out.Waiting = all.Val(), waiting()
			for _, z := range first.Val() {
				out.NextAt = new(msTime(int64(z.Score)))
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
	answer := askStats(ctx, pipe, liveOfCompany(company), deadOfCompany(company))
	if _, err := pipe.Exec(ctx); err != nil {
		return Stats{}, fmt.Errorf("count deliveries: %w", err)
	}
	return answer(), nil
}

// askStats asks what the lists of live and dead deliveries tell.
func askStats(ctx context.Context, pipe redis.Pipeliner, liveKey, deadKey string) (answer func() Stats) {
	live, dead := pipe.ZCard(ctx, liveKey), pipe.ZCard(ctx, deadKey)
	oldest := pipe.ZRangeWithScores(ctx, liveKey, 0, 0)
	return func() Stats {
		out := Stats{Live: live.Val(), Dead: dead.Val()}
		for _, z := range oldest.Val() {
			at := msTime(int64(z.Score))
			out.OldestLiveAt = &at
		}
		return out
	}
}
