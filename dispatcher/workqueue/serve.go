package workqueue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

const (
	// roundMost is how many partitions of a shard are claimed from at once.
	roundMost = 64
	// roundTime is how long a round of several partitions should take.
	roundTime = 6 * time.Millisecond
	// roundLeast is the smallest budget of a round.
	roundLeast = 32
	// serveWait bounds how long a wake-up waits for its partitions to be served. While
	// its workers wait, a busy replica leaves further wake-ups to other replicas. The
	// bound keeps a shard that does not answer from blocking wake-ups of other shards.
	serveWait = 100 * time.Millisecond
	// claimTimeout bounds one claim.
	claimTimeout = 10 * time.Second
)

// server serves the partitions of one shard, one claim after the other, so that each claim
// sees the places that the previous one used. Queue.mu guards it.
type server struct {
	shard   string        // its address
	queued  []int         // to be served, in this order
	serving []int         // nil: no round is running
	budget  int           // deliveries of a round of several partitions
	served  chan struct{} // closed at the end of each round, and replaced
}

func (s *server) has(p int) bool {
	return slices.Contains(s.queued, p) || slices.Contains(s.serving, p)
}

// Kick makes this replica serve partitions soon.
func (q *Queue) Kick(partitions ...int) { q.enqueue(partitions) }

// serve queues partitions and waits until they are served, at most for serveWait.
func (q *Queue) serve(partitions []int) {
	timeout := time.NewTimer(serveWait)
	defer timeout.Stop()
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
			case <-timeout.C:
				return
			}
		}
	}
}

// enqueue queues partitions at the servers of their shards. It leaves out those with a claim that
// is being recovered: they are served after that.
func (q *Queue) enqueue(partitions []int) map[*server][]int {
	groups := q.byShard(q.ctx, partitions)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx.Err() != nil { // StopClaiming waits only for rounds that began before
		for _, p := range partitions {
			q.dropped[p] = true
		}
		return nil
	}
	if q.refused.Load() != nil {
		return nil
	}
	of := make(map[*server][]int, len(groups))
	for shard, group := range groups {
		s := q.servers[shard]
		if s == nil {
			s = &server{shard: shard, served: make(chan struct{}), budget: claimLong}
			q.servers[shard] = s
		}
		of[s] = group
		for _, p := range group {
			if len(q.lost[p]) == 0 && !slices.Contains(s.queued, p) {
				s.queued = append(s.queued, p)
			}
		}
		q.begin(s)
	}
	return of
}

// begin starts to serve the queued partitions of a shard, unless a round is running.
func (q *Queue) begin(s *server) {
	if q.started && s.serving == nil && len(s.queued) > 0 {
		s.next()
		q.claiming.Go(func() { q.run(q.claimCtx, s) })
	}
}

// next begins the next round.
func (s *server) next() {
	n := min(len(s.queued), roundMost)
	s.serving = slices.Clone(s.queued[:n])
	s.queued = slices.Delete(s.queued, 0, n)
	slices.Sort(s.serving)
}

// adjust sets the budget of the next round by how long this one took. A long round means that
// Redis or the CPU is busy: smaller rounds serve the next partitions sooner.
func (s *server) adjust(took time.Duration) {
	switch {
	case took > roundTime:
		s.budget = max(s.budget*3/4, roundLeast)
	case took < roundTime/2:
		s.budget = min(s.budget+16, claimLong)
	}
}

// run serves the queued partitions of a shard until none is left.
func (q *Queue) run(ctx context.Context, s *server) {
	for {
		began := time.Now() //nolint:forbidigo // tunes a size, decides nothing
		q.serveRound(ctx, s.shard, s.serving, s.budget)
		q.mu.Lock()
		s.adjust(time.Since(began)) //nolint:forbidigo // as above
		close(s.served)
		s.served = make(chan struct{})
		s.queued = slices.DeleteFunc(s.queued, func(p int) bool { return len(q.lost[p]) > 0 })
		if len(s.queued) == 0 || q.ctx.Err() != nil || q.refused.Load() != nil {
			left := s.queued
			s.queued, s.serving = nil, nil
			q.mu.Unlock()
			if q.ctx.Err() != nil {
				q.Kick(left...) // StopClaiming hands them over
			} else {
				q.Wake(ctx, left) // the stored format was refused: other replicas may read it
			}
			return
		}
		s.next()
		q.mu.Unlock()
	}
}

// serveRound claims work of partitions of one shard, as much as this replica has places for and
// the budget allows, and starts the claimed work.
func (q *Queue) serveRound(ctx context.Context, shard string, partitions []int, budget int) {
	shares, others := q.opts.Admission.Holding()
	if !anyFree(shares, others) {
		q.park(partitions)
		if anyFree(q.opts.Admission.Holding()) { // a place was freed before the partitions were parked
			q.Freed()
		}
		return
	}
	if most := max(1, 2*others); len(partitions) > most { // a claim takes at least one delivery
		q.Kick(partitions[most:]...)
		partitions = partitions[:most]
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	replica := *q.replica.Load()
	if err := q.watch.announce(ctx, shard, replica); err != nil {
		if !q.refuse(err) {
			q.claimFailed(ctx, partitions[0], err)
			time.AfterFunc(recoverPause, func() { q.Kick(partitions...) })
		}
		return
	}
	q.claimRound(ctx, replica, partitions, budget, shares, others)
}

// claimRound claims under the id replica, and starts the claimed work.
func (q *Queue) claimRound(ctx context.Context, replica string, partitions []int, budget int, shares map[uuid.UUID]int, others int) {
	var batches []Batch
	var again []int
	number := q.calls.Add(1)
	size := q.claimSize(partitions, others, budget) / int(q.underway.Add(1)) // claims of other shards share the memory
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
			q.claimFailed(ctx, c.partition, c.err)
			q.recoverClaim(c.partition, replica, number)
			continue
		}
		if c.next >= 0 {
			time.AfterFunc(c.next, func() { q.Kick(c.partition) })
		}
		if c.wake {
			again = append(again, c.partition)
		}
		for _, d := range c.damaged {
			q.claimFailed(ctx, c.partition, d.err, "company_uuid", d.company)
		}
		q.notePassed(c.passed)
		batches = append(batches, c.batches...)
	}
	q.served(partitions)
	q.Wake(ctx, again)
	if len(batches) > 0 {
		q.opts.Take(ctx, replica, batches)
	}
}

// claimFailed logs that work of a partition was not claimed. fields are further fields of the line.
func (q *Queue) claimFailed(ctx context.Context, p int, err error, fields ...any) {
	level, left := q.failed.Level(slog.LevelError)
	fields = append(fields, "partition", p, "exception.message", err, "left_out", left)
	q.opts.Logger.Log(ctx, level, "claim failed", fields...)
}

// byShard groups partitions by the Redis server that serves them.
func (q *Queue) byShard(ctx context.Context, partitions []int) map[string][]int {
	groups := make(map[string][]int, 1)
	for _, p := range partitions {
		shard, err := partition.Shard(ctx, q.opts.Client, p)
		if err != nil {
			shard = "" // the calls of this partition fail with the reason
		}
		groups[shard] = append(groups[shard], p)
	}
	return groups
}
