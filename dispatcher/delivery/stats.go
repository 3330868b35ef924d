package delivery

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// sampled is how many deliveries tell which subscribers they are of.
const sampled = 1000

// Busiest are subscribers of a company, at most n: those that most of its 1,000 oldest live
// and 1,000 latest dead deliveries are of, in one round trip.
func (s *Store) Busiest(ctx context.Context, company uuid.UUID, n int) ([]uuid.UUID, error) {
	pipe := s.client.Pipeline()
	live := pipe.ZRange(ctx, liveOfCompany(company), 0, sampled-1)
	dead := pipe.ZRevRange(ctx, deadOfCompany(company), 0, sampled-1)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("sample deliveries: %w", err)
	}
	counts := map[string]int{}
	for _, name := range slices.Concat(live.Val(), dead.Val()) {
		counts[name[strings.LastIndexByte(name, '/')+1:]]++
	}
	names := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	var busiest []uuid.UUID
	for _, name := range names[:min(n, len(names))] {
		if id, err := uuid.Parse(name); err == nil {
			busiest = append(busiest, id)
		}
	}
	return busiest, nil
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
