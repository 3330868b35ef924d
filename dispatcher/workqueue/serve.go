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
	// While others have work too, a partition that has more work rests for restFactor times as long as its
	// round took, at most restMost: on a busy machine the requests and deliveries of others come first.
	restFactor = 4
	restMost   = 50 * time.Millisecond
	// claimTimeout bounds one round of claims.
	claimTimeout = 10 * time.Second
	// othersMemory is how long a partition counts as having work after it was served.
	othersMemory = 250 * time.Millisecond
)

// serve queues partitions that this replica owns, and starts to serve them.
func (q *Queue) serve(partitions []int) {
	groups, _ := partition.ByShard(q.ctx, q.opts.Client, partitions, partition.Prefix) // a tick serves those without a known shard
	q.mu.Lock()
	defer q.mu.Unlock()
	for address, group := range groups {
		s := q.shardAt(address)
		for _, p := range group {
			if !slices.Contains(s.queued, p) {
				s.queued = append(s.queued, p)
			}
		}
		q.begin(s)
	}
}

// mayClaim reports whether a shard has queued partitions and this replica may claim now. Queue.mu is held.
func (q *Queue) mayClaim(s *shard) bool {
	return len(s.queued) > 0 && q.started && q.ctx.Err() == nil
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
	}
}

// run serves the queued partitions of a shard until none is left, or until this replica has no places
// or is shutting down.
func (q *Queue) run(ctx context.Context, s *shard) {
	for {
		parts, shares, others := q.beginRound(s)
		if parts == nil {
			return
		}
		began := time.Now() //nolint:forbidigo // tunes a size, decides nothing
		q.serveRound(ctx, s, parts, shares, others)
		q.locked(func() { s.adjust(time.Since(began)) }) //nolint:forbidigo // as above
	}
}

// beginRound begins the next round of a shard. It returns the partitions to serve, nil when there is no
// round, and the shares of the companies. Without places the partitions stay queued until Freed is called.
func (q *Queue) beginRound(s *shard) (parts []part, shares map[uuid.UUID]int, others int) {
	shares, others = q.opts.Admission.Holding()
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.running = q.mayClaim(s); !s.running {
		return nil, nil, 0
	}
	if !anyFree(shares, others) {
		q.full.Store(true)
		shares, others = q.opts.Admission.Holding() // places that were freed before full was set
		if s.running = anyFree(shares, others); !s.running {
			return nil, nil, 0
		}
		q.beginAll()
	}
	parts = []part{}
	n := min(len(s.queued), roundMost, max(1, 2*others)) // a claim takes at least one delivery
	for _, p := range slices.Sorted(slices.Values(s.queued[:n])) {
		if token := q.owner.Token(p); token != "" && !q.isRecovering(p) { // else it is served once that has changed
			parts = append(parts, part{p, token})
		}
	}
	s.queued = slices.Delete(s.queued, 0, n)
	return parts, shares, others
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
func (q *Queue) serveRound(ctx context.Context, s *shard, parts []part, shares map[uuid.UUID]int, others int) {
	if len(parts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	began := time.Now() //nolint:forbidigo // paces, decides nothing
	var batches []Batch
	var again []int
	number := q.calls.Add(1)
	partitions := make([]int, len(parts))
	for i, p := range parts {
		partitions[i] = p.id
	}
	size := q.claimSize(partitions, others, s.budget) / int(q.underway.Add(1)) // claims of other shards share the memory
	defer q.underway.Add(-1)
	for _, c := range q.claim(ctx, number, parts, max(size, 1), shares, others) {
		q.metrics.claims.Inc()
		switch {
		case errors.Is(c.err, errNotOwner):
			q.owner.Lost(c.id, c.token)
			continue
		case c.err != nil:
			if !q.owner.Refuses(c.err) {
				q.failed.Log(ctx, "partition", c.id, "exception.message", c.err)
				q.claimLost(lostClaim{c.part, number})
			}
			continue
		}
		if c.next >= 0 {
			time.AfterFunc(c.next, func() { q.serve([]int{c.id}) })
		}
		if c.wake {
			again = append(again, c.id)
		}
		for company, why := range c.damaged {
			q.failed.Log(ctx, "partition", c.id, "exception.message", why, "company_uuid", company)
		}
		q.noteSkipped(c.skipped)
		batches = append(batches, c.batches...)
	}
	q.served(partitions)
	q.serveAgain(again, time.Since(began)) //nolint:forbidigo // as above
	if len(batches) > 0 {
		q.opts.Take(ctx, batches)
	}
}

// serveAgain serves partitions again, after a rest while other partitions have work. It does not wait.
func (q *Queue) serveAgain(partitions []int, took time.Duration) {
	switch {
	case len(partitions) == 0:
	case q.othersHaveWork():
		time.AfterFunc(min(restFactor*took, restMost), func() { q.serve(partitions) })
	default:
		q.serve(partitions)
	}
}

// othersHaveWork reports whether several partitions had work just now.
func (q *Queue) othersHaveWork() bool {
	return time.Now().UnixMilli() < q.othersUntil.Load() //nolint:forbidigo // tunes a size and a pace, decides nothing
}

// noteSkipped notes that a claim skipped companies because they hold their share of this replica's
// memory: their receivers delay their work.
func (q *Queue) noteSkipped(companies []uuid.UUID) {
	q.metrics.skipped.Add(float64(len(companies)))
	now := time.Now() //nolint:forbidigo // for metrics
	for _, c := range companies {
		q.skipped.Add(c, now)
		if q.opts.Admission.Skipped(c) {
			q.serve([]int{partition.Of(c)})
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
	case int(q.lastPartition.Load()) != partitions[0] || q.othersHaveWork():
		most = claimShort // another partition had work just now
	}
	return max(1, min(most, 2*share/n))
}
