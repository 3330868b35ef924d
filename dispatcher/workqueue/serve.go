package workqueue

import (
	"context"
	"errors"
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
	// serveWait bounds how long a worker waits until the partitions of its wake-up are served.
	// A busy replica whose workers all wait leaves further wake-ups to other replicas. Without
	// the bound, a shard that does not answer would block the wake-ups of other shards.
	serveWait = 100 * time.Millisecond
	// claimTimeout bounds one round of claims.
	claimTimeout = 10 * time.Second
	// othersMemory is how long a partition counts as having work after it was served.
	othersMemory = 250 * time.Millisecond
)

func (s *shard) has(p int) bool {
	return slices.Contains(s.queued, p) || slices.Contains(s.serving, p)
}

// Kick makes this replica serve partitions soon. After StopClaiming it leaves them to other replicas.
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

// enqueue queues partitions at their shards. It returns them by shard if they will be served.
func (q *Queue) enqueue(partitions []int) map[*shard][]int {
	groups, _ := partition.ByShard(q.ctx, q.opts.Client, partitions, partition.Prefix) // their owner serves partitions without a known shard
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refused.Load() != nil {
		return nil
	}
	of := make(map[*shard][]int, len(groups))
	for address, group := range groups {
		s := q.shards[address]
		if s == nil {
			s = newShard(address, nil)
			q.shards[address] = s
		}
		for _, p := range group {
			if !slices.Contains(s.queued, p) {
				s.queued = append(s.queued, p)
			}
		}
		q.begin(s)
		if s.running && q.ctx.Err() == nil { // else handOver hands them to other replicas
			of[s] = group
		}
	}
	return of
}

// mayClaim reports whether a shard has queued partitions and this replica may claim from it now. Queue.mu
// is held.
func (q *Queue) mayClaim(s *shard) bool {
	return len(s.queued) > 0 && q.started && q.ctx.Err() == nil && q.refused.Load() == nil && q.isAnnounced(s)
}

// begin starts to serve the queued partitions of a shard, unless that is under way. Queue.mu is held.
func (q *Queue) begin(s *shard) {
	if !s.running && q.mayClaim(s) {
		s.running = true
		q.claiming.Go(func() { q.run(q.claimCtx, s) })
	}
}

// beginAll starts to serve the queued partitions of all shards. Queue.mu is held.
func (q *Queue) beginAll() {
	q.full.Store(false)
	for _, s := range q.shards {
		q.begin(s)
	}
}

// Freed must be called when places in this replica's memory were freed. It serves the
// partitions that wait for a place.
func (q *Queue) Freed() {
	if q.full.Load() {
		q.locked(q.beginAll)
		q.waker.wake()
	}
}

// run serves the queued partitions of a shard until none is left, or until this replica has no places
// or must not claim.
func (q *Queue) run(ctx context.Context, s *shard) {
	for {
		replica, shares, others := q.beginRound(s)
		if replica == "" {
			break
		}
		began := time.Now() //nolint:forbidigo // tunes a size, decides nothing
		q.serveRound(ctx, s, replica, shares, others)
		q.locked(func() {
			s.adjust(time.Since(began)) //nolint:forbidigo // as above
			close(s.served)
			s.served, s.serving = make(chan struct{}), nil
		})
	}
	if q.Refused() != nil { // other replicas may read the stored format
		q.handOver(ctx)
	}
}

// beginRound begins the next round of a shard. It returns the replica id to claim under, "" when there
// is no round, and the shares of the companies. Without places the partitions stay queued until Freed
// is called; until then the replica takes no wake-ups and leaves them to other replicas.
func (q *Queue) beginRound(s *shard) (replica string, shares map[uuid.UUID]int, others int) {
	running := false
	q.locked(func() {
		running = q.mayClaim(s)
		s.running = running
	})
	if !running {
		return "", nil, 0
	}
	shares, others = q.opts.Admission.Holding()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !anyFree(shares, others) {
		q.full.Store(true)
		shares, others = q.opts.Admission.Holding() // places that were freed before full was set
		if s.running = anyFree(shares, others); !s.running {
			return "", nil, 0
		}
		q.beginAll()
	}
	if s.running = q.mayClaim(s); !s.running {
		return "", nil, 0
	}
	n := min(len(s.queued), roundMost, max(1, 2*others)) // a claim takes at least one delivery
	s.serving = slices.Sorted(slices.Values(s.queued[:n]))
	s.queued = slices.Delete(s.queued, 0, n)
	return s.announced, shares, others
}

// anyFree reports whether any company may claim.
func anyFree(shares map[uuid.UUID]int, others int) bool {
	for _, share := range shares {
		others = max(others, share)
	}
	return others > 0
}

// adjust sets the budget of the next round by how long this one took. A long round means that
// Redis or the CPU is busy: smaller rounds serve the next partitions sooner.
func (s *shard) adjust(took time.Duration) {
	switch {
	case took > roundTime:
		s.budget = max(s.budget*3/4, roundLeast)
	case took < roundTime/2:
		s.budget = min(s.budget+16, claimLong)
	}
}

// serveRound claims work of the partitions of a round, as much as this replica has places for and
// the budget allows, and starts the claimed work.
func (q *Queue) serveRound(ctx context.Context, s *shard, replica string, shares map[uuid.UUID]int, others int) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	partitions := q.recoverClaims(ctx, s.serving)
	if len(partitions) == 0 {
		return
	}
	var batches []Batch
	var again []int
	number := q.calls.Add(1)
	size := q.claimSize(partitions, others, s.budget) / int(q.underway.Add(1)) // claims of other shards share the memory
	defer q.underway.Add(-1)
	for _, c := range q.claim(ctx, replica, number, partitions, max(size, 1), shares, others) {
		q.metrics.claims.Inc()
		switch {
		case errors.Is(c.err, errFenced):
			q.renameFenced(replica)
			again = append(again, c.partition)
			continue
		case c.err != nil:
			if !q.stopIfRefused(c.err) {
				q.failed.Log(ctx, "partition", c.partition, "exception.message", c.err)
				q.claimLost(lostClaim{c.partition, replica, number})
			}
			continue
		}
		if c.next >= 0 {
			time.AfterFunc(c.next, func() { q.Kick(c.partition) })
		}
		if c.wake {
			again = append(again, c.partition)
		}
		for company, why := range c.damaged {
			q.failed.Log(ctx, "partition", c.partition, "exception.message", why, "company_uuid", company)
		}
		q.noteSkipped(c.skipped)
		batches = append(batches, c.batches...)
	}
	q.served(partitions)
	q.Wake(ctx, again)
	if len(batches) > 0 {
		q.opts.Take(ctx, replica, batches)
	}
}

// noteSkipped notes that a claim skipped companies because they hold their share of this replica's
// memory: their receivers delay their work.
func (q *Queue) noteSkipped(companies []uuid.UUID) {
	q.metrics.skipped.Add(float64(len(companies)))
	now := time.Now() //nolint:forbidigo // for metrics
	for _, c := range companies {
		q.skipped.Add(c, now)
		if q.opts.Admission.Skipped(c) {
			q.Kick(partition.Of(c))
		}
	}
}

// SkippedSince reports whether a claim skipped the company, at the time or later, because its deliveries
// held its share of this replica's memory.
func (q *Queue) SkippedSince(company uuid.UUID, at time.Time) bool {
	last, ok := q.skipped.Peek(company)
	return ok && !last.Before(at)
}

// served notes which partitions had work just now.
func (q *Queue) served(partitions []int) {
	last := int64(partitions[len(partitions)-1])
	if q.lastPartition.Swap(last) != int64(partitions[0]) || len(partitions) > 1 {
		q.othersUntil.Store(time.Now().Add(othersMemory).UnixMilli()) //nolint:forbidigo // tunes a size, decides nothing
	}
}

// claimSize returns how many deliveries of each partition one call may claim. Small claims serve the
// next partition sooner; large claims cost less per delivery. Several partitions share budget.
func (q *Queue) claimSize(partitions []int, share, budget int) int {
	n, most := len(partitions), claimLong
	switch {
	case n > 1:
		most = min(max(budget/n, claimLeast), claimShort)
	case int(q.lastPartition.Load()) != partitions[0] || time.Now().UnixMilli() < q.othersUntil.Load(): //nolint:forbidigo // as above
		most = claimShort // another partition had work just now
	}
	return max(1, min(most, 2*share/n))
}
