package workqueue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

const (
	// roundMost is how many partitions of a shard are claimed from at once.
	roundMost = 16
	// serveWait bounds how long a wake-up waits until its partitions are served. So
	// long a busy replica leaves further wake-ups to the others; a shard that does
	// not answer holds up no wake-up of another one.
	serveWait = 100 * time.Millisecond
	// claimTimeout bounds one claim.
	claimTimeout = 10 * time.Second
)

// server serves the partitions of one shard, one claim after the other: each knows
// what the last one took of the memory. Queue.mu guards it.
type server struct {
	queued  []int         // to be served, in this order
	serving []int         // nil: none is under way
	served  chan struct{} // closed at the end of each round, and replaced
}

func (s *server) has(p int) bool {
	return slices.Contains(s.queued, p) || slices.Contains(s.serving, p)
}

// Kick has this replica serve partitions soon.
func (q *Queue) Kick(partitions ...int) { q.enqueue(partitions) }

// serve has partitions served, and waits until they are, or for serveWait.
func (q *Queue) serve(partitions []int) {
	patience := time.NewTimer(serveWait)
	defer patience.Stop()
	for s, group := range q.enqueue(partitions) {
		for {
			q.mu.Lock()
			served, done := s.served, !slices.ContainsFunc(group, s.has)
			q.mu.Unlock()
			if done {
				break
			}
			select {
			case <-served:
			case <-patience.C:
				return
			}
		}
	}
}

// enqueue adds partitions to what is to be served of their shards.
func (q *Queue) enqueue(partitions []int) map[*server][]int {
	groups := q.byShard(q.ctx, partitions)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx.Err() != nil || q.refused.Load() != nil { // StopClaiming waits for what began before
		return nil
	}
	of := make(map[*server][]int, len(groups))
	for shard, group := range groups {
		s := q.servers[shard]
		if s == nil {
			s = &server{served: make(chan struct{})}
			q.servers[shard] = s
		}
		of[s] = group
		for _, p := range group {
			if !slices.Contains(s.queued, p) {
				s.queued = append(s.queued, p)
			}
		}
		q.begin(s)
	}
	return of
}

// begin begins to serve what is queued of a shard, unless that is under way.
func (q *Queue) begin(s *server) {
	if q.started && s.serving == nil && len(s.queued) > 0 {
		s.next()
		q.claiming.Go(func() { q.run(q.asking, s) })
	}
}

// next begins the next round.
func (s *server) next() {
	n := min(len(s.queued), roundMost)
	s.serving = slices.Clone(s.queued[:n])
	s.queued = slices.Delete(s.queued, 0, n)
	slices.Sort(s.serving)
}

// run serves what is queued of a shard until nothing is.
func (q *Queue) run(ctx context.Context, s *server) {
	for {
		q.serveRound(ctx, s.serving)
		q.mu.Lock()
		close(s.served)
		s.served = make(chan struct{})
		if len(s.queued) == 0 || q.ctx.Err() != nil || q.refused.Load() != nil {
			s.queued, s.serving = nil, nil
			q.mu.Unlock()
			return
		}
		s.next()
		q.mu.Unlock()
	}
}

// serveRound claims work of partitions of one shard, as much as this replica has
// places for, and starts it.
func (q *Queue) serveRound(ctx context.Context, partitions []int) {
	shares, others := q.opts.Admission.Holding()
	if !anyFree(shares, others) {
		q.park(partitions)
		if anyFree(q.opts.Admission.Holding()) { // what left meanwhile did not know
			q.Freed()
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	replica := *q.replica.Load()
	var batches []Batch
	var again []int
	number := q.calls.Add(1)
	size := q.claimSize(partitions, others) / int(q.underway.Add(1)) // claims of other shards share the memory
	defer q.underway.Add(-1)
	for _, c := range q.claim(ctx, replica, number, partitions, max(size, 1), shares, others) {
		q.metrics.claims.Inc()
		switch {
		case errors.Is(c.err, errFenced):
			q.fenced(replica)
			again = append(again, c.partition)
			continue
		case c.err != nil:
			if q.refuse(c.err) {
				continue
			}
			q.opts.Logger.Error("claim failed", "partition", c.partition, "exception.message", c.err)
			q.recoverClaim(c.partition, replica, number)
			continue
		}
		if c.next >= 0 {
			time.AfterFunc(c.next, func() { q.Kick(c.partition) })
		}
		if c.wake {
			again = append(again, c.partition)
		}
		q.pass(c.passed)
		batches = append(batches, c.batches...)
	}
	q.served(partitions)
	q.Wake(ctx, again)
	if len(batches) > 0 {
		q.opts.Take(ctx, replica, batches)
	}
}

// byShard groups partitions by the Redis server that serves them.
func (q *Queue) byShard(ctx context.Context, partitions []int) map[string][]int {
	groups := make(map[string][]int, 1)
	if _, cluster := q.opts.Client.(*redis.ClusterClient); !cluster {
		groups[""] = partitions
		return groups
	}
	for _, p := range partitions {
		shard, err := partition.Shard(ctx, q.opts.Client, p)
		if err != nil {
			shard = "" // its calls fail, and say why
		}
		groups[shard] = append(groups[shard], p)
	}
	return groups
}
