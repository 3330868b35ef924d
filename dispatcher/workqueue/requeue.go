package workqueue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

// ClaimLife is how long after its claim the attempt of an ordered delivery may start. A
// replica that was suspended for longer may count as lost.
const ClaimLife = 2 * time.Second

// note is the hash of the work that is noted under the token.
func (p part) note() string { return partition.Prefix(p.id) + "n:" + p.token }

// handoverKey is the set of the tokens of former owners of a partition that have claimed work left.
func handoverKey(p int) string { return partition.Prefix(p) + "handover" }

// requeueCall is a call of the requeue script for the work of one claim, for the given notes, or, with
// neither, for all notes under the token. lost: the replica that made them is lost.
func (q *Queue) requeueCall(p part, claim any, lost bool, notes ...any) *script.Call {
	args := []any{partition.Prefix(p.id), p.token, claim, (q.opts.AttemptTimeout + ClaimLife).Milliseconds(), lost}
	return &script.Call{Script: requeueScript, Keys: queues.Keys(p.id), Args: append(args, notes...)}
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
func (q *Queue) Requeue(ctx context.Context, b Batch) error {
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
		return nil // the script would requeue everything that is noted under the token
	}
	p := partition.Of(b.Company)
	call := q.requeueCall(part{p, b.Token}, "", false, notes...)
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return fmt.Errorf("requeue work: %w", err)
	}
	q.readRequeued(p, call)
	q.Wake(ctx, []int{p})
	return nil
}

// requeueAll requeues all notes under tokens that claim nothing more, and wakes the partitions. It returns
// the parts without notes left, and the number of notes. lost: the replicas that made the notes are lost.
func (q *Queue) requeueAll(ctx context.Context, parts []part, lost bool) (done []part, n int, err error) {
	for len(parts) > 0 {
		calls := make([]*script.Call, len(parts))
		for i, p := range parts {
			calls[i] = q.requeueCall(p, "", lost)
		}
		_ = script.Run(ctx, q.opts.Client, calls...) // each call has its own error
		var more []part
		var woken []int
		for i, p := range parts {
			if _, failed := calls[i].Result(); failed != nil {
				err = fmt.Errorf("requeue work of partition %d: %w", p.id, failed)
				continue
			}
			requeued, left, wake := q.readRequeued(p.id, calls[i])
			n += int(requeued)
			if wake {
				woken = append(woken, p.id)
			}
			if left > 0 {
				more = append(more, p)
			} else {
				done = append(done, p)
			}
		}
		q.Wake(ctx, woken)
		parts = more
	}
	return done, n, err
}

// requeueOwn requeues all that this replica has noted in the partitions of a shard. It owns none of them.
func (q *Queue) requeueOwn(ctx context.Context, partitions []int) error {
	tokens, err := pipeline.Each(ctx, q.opts.Client, partitions, func(pipe redis.Pipeliner, p int) *redis.StringSliceCmd {
		return pipe.SMembers(ctx, handoverKey(p))
	})
	if err != nil {
		return fmt.Errorf("read claimed work: %w", err)
	}
	var own []part
	for i, p := range partitions {
		for _, token := range tokens[i].Val() {
			if q.owner.Made(token) {
				own = append(own, part{p, token})
			}
		}
	}
	_, _, err = q.requeueAll(ctx, own, false)
	return err
}

// BeginSuspect notes that the matching of a suspect begins, which was claimed under a token. It returns under
// how many other tokens the matching began and did not end: so many replicas were lost meanwhile.
func (q *Queue) BeginSuspect(ctx context.Context, token string, company uuid.UUID, event string) (deaths int, err error) {
	p := partition.Of(company)
	call := &script.Call{Script: suspectScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), token, company.String(), event}}
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return 0, fmt.Errorf("begin to match a suspect: %w", err)
	}
	n, _ := call.Reply().(int64)
	return int(n), nil
}

// EndSuspect notes that the matching of a suspect has ended: the event is none any more.
func (q *Queue) EndSuspect(ctx context.Context, company uuid.UUID, event string) error {
	if err := q.opts.Client.HDel(ctx, partition.Key(company, "suspects"), company.String()+"/"+event).Err(); err != nil {
		return fmt.Errorf("end to match a suspect: %w", err)
	}
	return nil
}

// lostClaim is a claim whose answer was lost.
type lostClaim struct {
	part
	number uint64
}

// claimLost notes that the answer of a claim was lost. The next tick requeues the work of the claim;
// until then this replica claims nothing from the partition. After StopClaiming, Release requeues the work.
func (q *Queue) claimLost(c lostClaim) {
	if c.token != "" {
		q.locked(func() { q.lost = append(q.lost, c) })
	}
}

// isRecovering reports whether a claim of the partition is to be recovered. Queue.mu is held.
func (q *Queue) isRecovering(p int) bool {
	return slices.ContainsFunc(q.lost, func(c lostClaim) bool { return c.id == p })
}

// recoverClaims requeues the work of the lost claims of partitions, and serves those that have none left.
func (q *Queue) recoverClaims(ctx context.Context, partitions []int) {
	var claims []lostClaim
	var calls []*script.Call
	q.locked(func() {
		for _, c := range q.lost {
			if slices.Contains(partitions, c.id) {
				claims, calls = append(claims, c), append(calls, q.requeueCall(c.part, c.number, false))
			}
		}
	})
	if len(calls) == 0 {
		return
	}
	_ = script.Run(ctx, q.opts.Client, calls...) // each call has its own error
	for i, c := range claims {
		if _, err := calls[i].Result(); err == nil {
			q.readRequeued(c.id, calls[i])
			q.locked(func() { q.lost = slices.DeleteFunc(q.lost, func(l lostClaim) bool { return l == c }) })
		}
	}
	q.Wake(ctx, partitions)
}
