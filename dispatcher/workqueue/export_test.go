package workqueue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

// Claimed is the answer of one claim.
type Claimed struct {
	Wake     bool
	NotOwner bool
	Skipped  []uuid.UUID
	Damaged  []uuid.UUID
	Next     time.Duration
	Batches  []Batch
	Err      error
}

// names are the tokens under which tests claim for queues that are not started, and stale the tokens of
// which the partition was taken over.
var (
	names sync.Map // *Queue to string
	stale sync.Map // string to true
)

// Name is the token under which tests claim for q.
func (q *Queue) Name() string {
	name, _ := names.LoadOrStore(q, q.opts.Replica+"."+uuid.NewString()+" 1")
	return name.(string)
}

// Rename takes a new token, as a restarted process does.
func (q *Queue) Rename() { names.Store(q, q.opts.Replica+"."+uuid.NewString()+" 1") }

// own makes q the owner of a partition, whoever is it now, unless its token is stale.
func (q *Queue) own(ctx context.Context, p int) part {
	name := q.Name()
	if _, taken := stale.Load(name); taken {
		return part{p, name}
	}
	q.opts.Client.Eval(ctx, ownSource, nil, partition.Prefix(p), name)
	return part{p, name}
}

const ownSource = `#!lua flags=allow-oom
local P, token = ARGV[1], ARGV[2]
local owner = redis.call('GET', P .. 'owner')
if owner == token then return end
if owner and redis.call('EXISTS', P .. 'n:' .. owner) == 1 then redis.call('SADD', P .. 'handover', owner) end
redis.call('SET', P .. 'owner', token)`

// ClaimOnce claims of one partition under the current name, as its owner.
func (q *Queue) ClaimOnce(ctx context.Context, p, most int, shares map[uuid.UUID]int, others int) Claimed {
	return exported(q.claim(ctx, q.calls.Add(1), []part{q.own(ctx, p)}, most, shares, others)[0])
}

func exported(c claimed) Claimed {
	out := Claimed{Wake: c.wake, NotOwner: errors.Is(c.err, errNotOwner), Skipped: c.skipped, Next: c.next, Batches: c.batches, Err: c.err}
	for company := range c.damaged {
		out.Damaged = append(out.Damaged, company)
	}
	return out
}

// Numbered makes q the owner of a partition, and returns its token and a number for a claim.
func (q *Queue) Numbered(ctx context.Context, p int) (string, uint64) {
	return q.own(ctx, p).token, q.calls.Add(1)
}

// Number is the number of another claim.
func (q *Queue) Number() uint64 { return q.calls.Add(1) }

// Promote runs promote.lua.
func (q *Queue) Promote(ctx context.Context, p, most int) (bool, error) {
	call := &script.Call{Script: promoteScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), most}}
	err := script.Run(ctx, q.opts.Client, call)
	return err == nil && call.Reply() == int64(1), err
}

// TakeOver takes a partition from the owner with this token and requeues its notes.
func (q *Queue) TakeOver(ctx context.Context, p int, token string) (int, error) {
	stale.Store(token, true)
	key := partition.Prefix(p) + "owner"
	if q.opts.Client.Get(ctx, key).Val() == token {
		q.opts.Client.Del(ctx, key)
	}
	_, n, err := q.requeueAll(ctx, []part{{p, token}}, true)
	return n, err
}

// ClaimHash is the SHA-1 by which Redis knows claim.lua.
func ClaimHash() string { return claimScript.Hash() }

// Read decodes batches as scripts return them.
func Read(batches []any) (out []Batch) {
	for _, b := range batches {
		out = append(out, readBatch(b, "", time.Time{}))
	}
	return out
}

// Recover requeues the work of the claim with this number.
func (q *Queue) Recover(ctx context.Context, p int, number uint64) error {
	return script.Run(ctx, q.opts.Client, q.requeueCall(q.own(ctx, p), number, false))
}

// Lose notes that the answer of the claim with this number was lost.
func (q *Queue) Lose(p int, number uint64) { q.claimLost(lostClaim{part{p, q.owner.Token(p)}, number}) }

// Token is that under which a started queue owns a partition.
func (q *Queue) Token(p int) string { return q.owner.Token(p) }

// Stopping reports whether no more claims start.
func (q *Queue) Stopping() bool { return q.ctx.Err() != nil }

// Idle reports whether no partition is being served.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.shards {
		if s.running {
			return false
		}
	}
	return true
}

// Full reports whether partitions wait for places.
func (q *Queue) Full() bool { return q.full.Load() }

// Repeat claims under a number.
func (q *Queue) Repeat(ctx context.Context, p int, number uint64) Claimed {
	return exported(q.claim(ctx, number, []part{q.own(ctx, p)}, 400, nil, 400)[0])
}

// ClaimAs claims under a token and a number.
func (q *Queue) ClaimAs(ctx context.Context, token string, p int, number uint64) Claimed {
	return exported(q.claim(ctx, number, []part{{p, token}}, 400, nil, 400)[0])
}

// RequeueHash is the SHA-1 by which Redis knows requeue.lua.
func RequeueHash() string { return requeueScript.Hash() }

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

// Lag is what the metric shows.
func (q *Queue) Lag() time.Duration { return q.lag(time.Now()) }

// AwaitWakeups waits until no partition is to be woken.
func (q *Queue) AwaitWakeups() { q.enqueuing.Wait() }
