package workqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

const (
	// tickTimeout bounds the service of one tick.
	tickTimeout = 5 * time.Second
	// promoteMost is how many endpoint queues and jobs of a partition become due in one call.
	promoteMost = 200
)

// shard is the service of one Redis server. Each shard is served on its own, so that a shard that is
// down does not affect the others. Queue.mu guards the fields that change.
type shard struct {
	// Claims, one round after the other, so that each sees the places that the previous one used.
	queued  []int // partitions to be served, in this order
	running bool  // a goroutine serves the queued partitions
	budget  int   // deliveries of a round of several partitions

	servicing sync.Mutex // held during a tick
	servedAt  time.Time  // when the owned partitions were last checked
	owned     bool       // there are owned partitions
}

// shardAt finds or makes the shard at an address. Queue.mu is held.
func (q *Queue) shardAt(address string) *shard {
	s := q.shards[address]
	if s == nil {
		s = &shard{budget: claimLong, servedAt: time.Now()} //nolint:forbidigo // for a metric
		q.shards[address] = s
	}
	return s
}

// runTicks starts a tick of each shard every ServiceEvery, until ctx ends.
func (q *Queue) runTicks(ctx context.Context) {
	tick := time.NewTicker(q.opts.ServiceEvery)
	defer tick.Stop()
	var ticks sync.WaitGroup
	defer ticks.Wait()
	for {
		groups, _ := partition.ByShard(ctx, q.opts.Client, q.attended(), partition.Prefix) // the next tick tries again
		q.mu.Lock()
		for address, s := range q.shards {
			s.owned = len(groups[address]) > 0
		}
		for address, partitions := range groups {
			s := q.shardAt(address)
			ticks.Go(func() { q.tick(ctx, s, partitions) })
		}
		q.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// attended lists the partitions that this replica owns, and those of which it has lost claims.
func (q *Queue) attended() []int {
	partitions := q.owner.Owned()
	q.locked(func() {
		for _, c := range q.lost {
			partitions = append(partitions, c.id)
		}
	})
	slices.Sort(partitions)
	return slices.Compact(partitions)
}

// tick recovers lost work of a shard's partitions, and serves what is due.
func (q *Queue) tick(ctx context.Context, s *shard, partitions []int) {
	if !s.servicing.TryLock() {
		return
	}
	defer s.servicing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	q.recoverClaims(ctx, partitions)
	q.recoverFormer(ctx, partitions)
	err := q.promote(ctx, partitions)
	if err != nil && !q.owner.Refuses(err) && !errors.Is(err, context.Canceled) {
		q.opts.Logger.Error("partitions not served", "exception.message", err)
	}
	if err == nil {
		q.locked(func() { s.servedAt = time.Now() }) //nolint:forbidigo // for a metric
	}
}

// recoverFormer requeues what former owners of owned partitions had claimed and cannot finish.
func (q *Queue) recoverFormer(ctx context.Context, partitions []int) {
	var lost, working []part
	for _, p := range partitions {
		gone, alive := q.owner.Former(p)
		for _, token := range gone {
			lost = append(lost, part{p, token})
		}
		for _, token := range alive {
			working = append(working, part{p, token})
		}
	}
	done, n, err := q.requeueAll(ctx, lost, true)
	q.metrics.requeued.Add(float64(n))
	if err != nil && !errors.Is(err, context.Canceled) {
		q.opts.Logger.Error("work of a lost replica not requeued", "exception.message", err)
	}
	for _, p := range done {
		q.owner.Finished(p.id, p.token)
	}
	left, err := pipeline.Each(ctx, q.opts.Client, working, func(pipe redis.Pipeliner, p part) *redis.IntCmd {
		return pipe.Exists(ctx, p.note())
	})
	if err != nil {
		return // the next tick tries again
	}
	for i, p := range working {
		if left[i].Val() == 0 && q.opts.Client.SRem(ctx, handoverKey(p.id), p.token).Err() == nil {
			q.owner.Finished(p.id, p.token)
		}
	}
}

// promote moves due endpoint queues and jobs of owned partitions into the turns of their companies, and
// serves wake-ups that were lost.
func (q *Queue) promote(ctx context.Context, partitions []int) error {
	owned := slices.DeleteFunc(slices.Clone(partitions), func(p int) bool { return q.owner.Token(p) == "" })
	clocks := make(map[int]*redis.SliceCmd, len(owned))
	firsts, err := pipeline.Each(ctx, q.opts.Client, owned, func(pipe redis.Pipeliner, p int) *redis.ZSliceCmd {
		clocks[p] = pipe.HMGet(ctx, queues.ClockKey(p), "last", "ahead")
		return pipe.ZRangeWithScores(ctx, queues.DueKey(p), 0, 0)
	})
	if err != nil {
		return fmt.Errorf("read due work: %w", err)
	}
	var calls []*script.Call
	var due []int
	for i, p := range owned {
		if z := firsts[i].Val(); len(z) > 0 && isDue(int64(z[0].Score), q.owner.Clock(p), clocks[p].Val()) {
			due = append(due, p)
			calls = append(calls, &script.Call{Script: promoteScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), promoteMost}})
		}
	}
	if len(due) == 0 {
		return nil
	}
	if err := script.Run(ctx, q.opts.Client, calls...); err != nil {
		return fmt.Errorf("promote due work: %w", err)
	}
	var ready []int
	for i, c := range calls {
		if n, _ := c.Reply().(int64); n == 1 {
			ready = append(ready, due[i])
		}
	}
	q.serve(ready)
	return nil
}

// isDue reports whether the first entry of a partition's due set may be due. noted is the partition's clock. It is
// also true when Redis's clock is behind the noted time: then the script corrects the partition's clock.
func isDue(at int64, redisTime time.Time, noted []any) bool {
	last, _ := strconv.ParseInt(text(noted[0]), 10, 64) // a missing one is 0
	ahead, _ := strconv.ParseInt(text(noted[1]), 10, 64)
	now := redisTime.UnixMilli() + ahead
	return at <= now || now < last
}

// lag is the time since the owned partitions were last served, in the shard where that is
// longest; 0 when this replica owns none.
func (q *Queue) lag(now time.Time) (longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.shards {
		if s.owned {
			longest = max(longest, now.Sub(s.servedAt))
		}
	}
	return longest
}
