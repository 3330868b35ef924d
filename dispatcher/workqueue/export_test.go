package workqueue

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

// Claimed is the answer of one claim.
type Claimed struct {
	Wake    bool
	Fenced  bool
	Skipped []uuid.UUID
	Damaged []uuid.UUID
	Next    time.Duration
	Batches []Batch
	Err     error
}

// ClaimOnce claims of one partition under the current name, as a wake-up does.
func (q *Queue) ClaimOnce(ctx context.Context, p, most int, shares map[uuid.UUID]int, others int) Claimed {
	return exported(q.claim(ctx, q.Name(), q.calls.Add(1), []int{p}, most, shares, others)[0])
}

func exported(c claimed) Claimed {
	out := Claimed{Wake: c.wake, Fenced: errors.Is(c.err, errFenced), Skipped: c.skipped, Next: c.next, Batches: c.batches, Err: c.err}
	for company := range c.damaged {
		out.Damaged = append(out.Damaged, company)
	}
	return out
}

// Name is the replica id that claims are noted under now.
func (q *Queue) Name() string { return *q.replica.Load() }

// Numbered returns the replica id and a number for a claim.
func (q *Queue) Numbered() (string, uint64) { return q.Name(), q.calls.Add(1) }

// Rename takes a new name, as a restarted process does.
func (q *Queue) Rename() { q.rename() }

// Promote runs promote.lua.
func (q *Queue) Promote(ctx context.Context, p, most int) (bool, error) {
	call := &script.Call{Script: promoteScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), most}}
	err := script.Run(ctx, q.opts.Client, call)
	return err == nil && call.Reply() == int64(1), err
}

// TakeOver fences a replica in one partition and requeues its notes.
func (q *Queue) TakeOver(ctx context.Context, p int, replica string) (int, error) {
	return q.requeueAll(ctx, []int{p}, replica)
}

// ClaimHash is the SHA-1 by which Redis knows claim.lua.
func ClaimHash() string { return claimScript.Hash() }

// Read decodes batches as scripts return them.
func Read(batches []any) (out []Batch) {
	for _, b := range batches {
		out = append(out, readBatch(b, time.Time{}))
	}
	return out
}

// Recover requeues the work of the claim with this number.
func (q *Queue) Recover(ctx context.Context, p int, number uint64) error {
	return script.Run(ctx, q.opts.Client, q.requeueCall(p, q.Name(), number))
}

// Lose notes that the answer of the claim with this number was lost.
func (q *Queue) Lose(p int, number uint64) { q.claimLost(lostClaim{p, q.Name(), number}) }

// RecoverClaims recovers the lost claims of partitions, as the next round does.
func (q *Queue) RecoverClaims(ctx context.Context, partitions []int) []int {
	return q.recoverClaims(ctx, partitions)
}

// Stopping reports whether no more claims start.
func (q *Queue) Stopping() bool { return q.ctx.Err() != nil }

// Full reports whether partitions wait for places.
func (q *Queue) Full() bool { return q.full.Load() }

// Repeat claims under a number.
func (q *Queue) Repeat(ctx context.Context, p int, number uint64) Claimed {
	return exported(q.claim(ctx, q.Name(), number, []int{p}, 400, nil, 400)[0])
}

// RequeueHash is the SHA-1 by which Redis knows requeue.lua.
func RequeueHash() string { return requeueScript.Hash() }

// ReplicasKey is the heartbeats of a Redis that is no Cluster, and ReadsKey the formats of these
// replicas.
func ReplicasKey() string { return replicasKey(0) }
func ReadsKey() string    { return readsKey(0) }

// ReplicasKeyOf is the heartbeats of the shard whose first partition is p.
func ReplicasKeyOf(p int) string { return replicasKey(p) }

// Takeovers counts the replicas that this one took over, and Fenced how often it
// was taken over itself.
func (q *Queue) Takeovers() float64 { return valueOf(q.metrics.takeovers) }
func (q *Queue) Fenced() float64    { return valueOf(q.metrics.fenced) }

// Wakeups counts the wake-ups that this replica enqueued, or could not enqueue.
func (q *Queue) Wakeups() float64 {
	return valueOf(q.metrics.enqueued) + valueOf(q.metrics.wakeupsFailed)
}

func valueOf(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

// NoteSkipped notes that a company was skipped, as a claim does.
func (q *Queue) NoteSkipped(company uuid.UUID) { q.skipped.Add(company, time.Now()) }

// Lag and Replicas are what the metrics show.
func (q *Queue) Lag() time.Duration { return q.lag(time.Now()) }
func (q *Queue) Replicas() int      { return q.replicas() }

// AwaitWakeups waits until no partition is to be woken.
func (q *Queue) AwaitWakeups() { q.enqueuing.Wait() }
