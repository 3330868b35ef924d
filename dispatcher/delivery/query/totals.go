package query

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery/keys"
	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events/layout"
)

// Stats counts a subscriber's deliveries that are kept.
type Stats struct {
	Total, Live, Dead int64      // Live: PENDING, DELIVERING, RETRYING, held ones included
	Waiting           int64      // of Live: in the endpoint queue, and due
	OldestLiveAt      *time.Time // when the oldest live delivery was created; nil when there is none
	NextAt            *time.Time // when the first in the endpoint queue is due; nil when there is none, and of an ordered subscriber
}

// Stats counts a subscriber's deliveries, in one round trip.
func (r *Reader) Stats(ctx context.Context, company, sub uuid.UUID) (Stats, error) {
	all, err := r.StatsOf(ctx, company, sub)
	if err != nil {
		return Stats{}, err
	}
	return all[0], nil
}

// StatsOf is Stats for several subscribers of a company, in their order and in one
// round trip.
func (r *Reader) StatsOf(ctx context.Context, company uuid.UUID, subs ...uuid.UUID) ([]Stats, error) {
	pipe := r.client.Pipeline()
	answers := make([]func() Stats, len(subs))
	for i, sub := range subs {
		all := pipe.ZCard(ctx, layout.OfSubscriberKey(company, sub))
		rest := askStats(ctx, pipe, keys.LiveOfSubscriber(company, sub), keys.DeadOfSubscriber(company, sub))
		waiting := r.askDue(ctx, pipe, company, sub)
		first := pipe.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: queues.EndpointQueueKey(company, sub), ByScore: true, Start: "-inf", Stop: "(" + queues.InOrder, Count: 1,
		})
		answers[i] = func() Stats {
			out := rest()
			out.Total, out.Waiting = all.Val(), waiting()
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
func (r *Reader) CompanyStats(ctx context.Context, company uuid.UUID) (Stats, error) {
	pipe := r.client.Pipeline()
	answer := askStats(ctx, pipe, keys.LiveOfCompany(company), keys.DeadOfCompany(company))
	if _, err := pipe.Exec(ctx); err != nil {
		return Stats{}, fmt.Errorf("count deliveries: %w", err)
	}
	return answer(), nil
}

// sampled is how many deliveries of each list Busiest reads.
const sampled = 1000

// Busiest lists up to n subscribers of a company, by their numbers of deliveries among the
// company's 1,000 oldest live and 1,000 latest dead ones. It takes one round trip.
func (r *Reader) Busiest(ctx context.Context, company uuid.UUID, n int) ([]uuid.UUID, error) {
	pipe := r.client.Pipeline()
	live := pipe.ZRange(ctx, keys.LiveOfCompany(company), 0, sampled-1)
	dead := pipe.ZRevRange(ctx, keys.DeadOfCompany(company), 0, sampled-1)
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

// askStats queues the reads of the lists of live and dead deliveries.
func askStats(ctx context.Context, pipe redis.Pipeliner, liveKey, deadKey string) (answer func() Stats) {
	live, dead := pipe.ZCard(ctx, liveKey), pipe.ZCard(ctx, deadKey)
	oldest := pipe.ZRangeWithScores(ctx, liveKey, 0, 0)
	return func() Stats {
		out := Stats{Live: live.Val(), Dead: dead.Val()}
		for _, z := range oldest.Val() {
			at := time.UnixMilli(int64(z.Score)).UTC()
			out.OldestLiveAt = &at
		}
		return out
	}
}

// Waiting counts the deliveries in the queue of a subscriber's endpoint that are due,
// those of an ordered subscriber all. Of several subscribers it is the most.
func (r *Reader) Waiting(ctx context.Context, company uuid.UUID, subscribers ...uuid.UUID) (most int64, err error) {
	waiting := make([]func() int64, len(subscribers))
	_, err = r.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, sub := range subscribers {
			waiting[i] = r.askDue(ctx, pipe, company, sub)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count waiting deliveries: %w", err)
	}
	for _, count := range waiting {
		most = max(most, count())
	}
	return most, nil
}

// askDue queues a count of the due deliveries of an endpoint queue.
func (r *Reader) askDue(ctx context.Context, pipe redis.Pipeliner, company, subscriber uuid.UUID) (due func() int64) {
	queue, now := queues.EndpointQueueKey(company, subscriber), strconv.FormatInt(r.now().UnixMilli(), 10)
	all := pipe.ZCard(ctx, queue)
	later := pipe.ZCount(ctx, queue, "("+now, "("+queues.InOrder)
	return func() int64 { return all.Val() - later.Val() }
}
