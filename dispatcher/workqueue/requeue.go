package workqueue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

// ClaimLife is how long after its claim the attempt of an ordered delivery may start. A
// replica that was suspended for longer may count as lost.
const ClaimLife = 2 * time.Second

// requeueCall is a call of the requeue script for the work of one claim, for the given notes, or, with
// neither, for all notes of the replica. In the last case the script also fences the replica.
func (q *Queue) requeueCall(p int, replica string, claim any, notes ...any) *script.Call {
	args := []any{partition.Prefix(p), replica, claim, (q.opts.AttemptTimeout + ClaimLife).Milliseconds()}
	return &script.Call{Script: requeueScript, Keys: queues.Keys(p), Args: append(args, notes...)}
}

// readRequeued reads the reply of the requeue script, and logs an error if the script quarantined work.
func (q *Queue) readRequeued(p int, call *script.Call) (done, left int64, wake bool) {
	counts := call.Numbers()
	if counts[3] > 0 {
		q.opts.Logger.Error("work not requeued but quarantined: a key of its company is damaged", "partition", p, "entries", counts[3])
	}
	return counts[0], counts[1], counts[2] == 1
}

// Requeue requeues claimed work of one company that was not started.
func (q *Queue) Requeue(ctx context.Context, replica string, b Batch) error {
	var notes []any
	company := b.Company.String()
	for _, e := range b.Events {
		notes = append(notes, company+"/"+e.ID)
	}
	for _, d := range b.Deliveries {
		notes = append(notes, company+"/"+d.EventID+"/"+d.Subscriber.String())
	}
	for _, j := range b.Jobs {
		notes = append(notes, "j:"+company+"/"+j.String())
	}
	if len(notes) == 0 {
		return nil // the script would requeue everything that the replica has noted
	}
	p := partition.Of(b.Company)
	call := q.requeueCall(p, replica, "", notes...)
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return fmt.Errorf("requeue work: %w", err)
	}
	q.readRequeued(p, call)
	q.Kick(p)
	return nil
}

// requeueAll fences a replica in the partitions of a shard, requeues all its notes there, wakes the
// partitions and removes the replica's heartbeat. It returns the number of notes.
func (q *Queue) requeueAll(ctx context.Context, partitions []int, replica string) (n int, err error) {
	for rest := partitions; len(rest) > 0; {
		calls := make([]*script.Call, len(rest))
		for i, p := range rest {
			calls[i] = q.requeueCall(p, replica, "")
		}
		if err := script.Run(ctx, q.opts.Client, calls...); err != nil {
			return n, fmt.Errorf("requeue work: %w", err)
		}
		var more, woken []int
		for i, p := range rest {
			done, left, wake := q.readRequeued(p, calls[i])
			n += int(done)
			if left > 0 {
				more = append(more, p)
			}
			if wake {
				woken = append(woken, p)
			}
		}
		q.Wake(ctx, woken)
		rest = more
	}
	pipe := q.opts.Client.Pipeline()
	pipe.ZRem(ctx, replicasKey(partitions[0]), replica)
	pipe.HDel(ctx, readsKey(partitions[0]), replica)
	if _, err := pipe.Exec(ctx); err != nil {
		return n, fmt.Errorf("remove heartbeat: %w", err)
	}
	return n, nil
}

// lostClaim is a claim whose answer was lost.
type lostClaim struct {
	partition int
	replica   string
	number    uint64
}

// claimLost notes that the answer of a claim was lost. The replica requeues the work of the claim
// before it claims from the partition again: the next tick serves the partition. After StopClaiming, Release
// requeues the work.
func (q *Queue) claimLost(c lostClaim) {
	q.locked(func() { q.lost = append(q.lost, c) })
}

// kickLost serves the partitions that have lost claims.
func (q *Queue) kickLost() {
	var partitions []int
	q.locked(func() {
		for _, c := range q.lost {
			partitions = append(partitions, c.partition)
		}
	})
	q.Kick(partitions...)
}

// isRecovering reports whether a claim of the partition is to be recovered. Queue.mu is held.
func (q *Queue) isRecovering(p int) bool {
	return slices.ContainsFunc(q.lost, func(c lostClaim) bool { return c.partition == p })
}

// recoverClaims requeues the work of the lost claims of partitions. It returns the partitions that
// have no lost claims left.
func (q *Queue) recoverClaims(ctx context.Context, partitions []int) []int {
	var claims []lostClaim
	var calls []*script.Call
	q.locked(func() {
		for _, c := range q.lost {
			if slices.Contains(partitions, c.partition) {
				claims, calls = append(claims, c), append(calls, q.requeueCall(c.partition, c.replica, c.number))
			}
		}
	})
	if len(calls) == 0 {
		return partitions
	}
	_ = script.Run(ctx, q.opts.Client, calls...) // each call has its own error
	for i, c := range claims {
		if _, err := calls[i].Result(); err == nil {
			q.readRequeued(c.partition, calls[i])
			q.locked(func() { q.lost = slices.DeleteFunc(q.lost, func(l lostClaim) bool { return l == c }) })
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(partitions), q.isRecovering)
}
