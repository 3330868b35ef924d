package workqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

// BeginWithin is how long after it was marked as in flight, or after Holds, the attempt of an ordered delivery may start. A
// replica that was suspended for longer may count as lost.
const BeginWithin = 2 * time.Second

// Holds reports whether a delivery is still marked as in flight under a token whose owner still owns the partition. It
// waits for BeginWithin at most, and is false when Redis does not answer.
func (q *Queue) Holds(ctx context.Context, token string, company, subscriber uuid.UUID, event string) bool {
	ctx, cancel := context.WithTimeout(ctx, BeginWithin)
	defer cancel()
	p := partition.Of(company)
	call := &script.Call{
		Script: holdsScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), token, company.String(), subscriber.String(), event},
	}
	return script.Run(ctx, q.opts.Client, call) == nil && call.Reply() == int64(1)
}

// giving is the option Giving of package owner. It keeps what the next owners need to know.
func (q *Queue) giving(ctx context.Context, tokens map[int]string) map[int][]any {
	shards := make(map[*shard]bool)
	q.locked(func() {
		for p := range tokens {
			if s := q.shardOf(p); s != nil {
				shards[s] = true
			}
		}
	})
	for s := range shards {
		if err := q.keep(ctx, s); err != nil { // the next owners match some events again, and rates start again
			q.opts.Logger.Warn("cursors not kept", "exception.message", err)
		}
	}
	begun := make(map[int][]any)
	q.locked(func() {
		for p, token := range tokens {
			if events, working := q.begun(p, token); working {
				begun[p] = events
			}
		}
	})
	return begun
}

// begun lists the events that are being matched under a token that is given away, and reports whether anything is begun.
// Queue.mu is held.
func (q *Queue) begun(p int, token string) (events []any, working bool) {
	if o := q.owned[p]; o != nil && o.token == token {
		q.forget(p)
	}
	g := q.given[token]
	if g == nil {
		return nil, false
	}
	for ref := range g.events {
		events = append(events, ref)
	}
	return events, len(events)+g.deliveries > 0
}

// forget forgets a partition that this replica does not own any more, except what it has begun there. Queue.mu is held.
func (q *Queue) forget(p int) {
	o := q.owned[p]
	list, deliveries := o.shard.schedule.Begun(p)
	g := &given{partition: p, events: make(map[string]bool), deliveries: deliveries}
	for _, e := range list {
		if ref := e.Company.String() + "/" + e.ID; !o.isElsewhere(ref) {
			g.events[ref] = true
		}
	}
	if len(g.events)+deliveries > 0 {
		q.given[o.token] = g
	}
	o.shard.schedule.Drop(p)
	delete(q.owned, p)
	maps.DeleteFunc(q.unsure, func(c uuid.UUID, _ unsure) bool { return partition.Of(c) == p }) // the next owner reads the logs
}

func (o *owned) isElsewhere(ref string) bool {
	for _, refs := range o.elsewhere {
		if refs[ref] {
			return true
		}
	}
	return false
}

// finished notes that something is finished that was begun under a token: an event, or a delivery (event ""). The next
// owner sees that. Queue.mu is held.
func (q *Queue) finished(token, event string) {
	g := q.given[token]
	switch {
	case g == nil:
		return
	case event == "":
		g.deliveries--
	case g.events[event]:
		delete(g.events, event)
		g.untold = append(g.untold, event)
	}
	q.tell(token, g)
}

// tellGiven tells the next owners what they could not be told before.
func (q *Queue) tellGiven() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for token, g := range q.given {
		q.tell(token, g)
	}
}

// tell tells the next owner of a partition what this replica has finished. It does not wait. What could not be told,
// a later look tells. Queue.mu is held.
func (q *Queue) tell(token string, g *given) {
	all := len(g.events) == 0 && g.deliveries <= 0
	if g.telling || len(g.untold) == 0 && !all {
		return
	}
	events := g.untold
	g.telling, g.untold = true, nil
	q.background.Go(func() {
		err := q.finish(q.turnCtx, g.partition, token, events, all)
		q.mu.Lock()
		defer q.mu.Unlock()
		g.telling = false
		switch {
		case err != nil:
			g.untold = append(g.untold, events...)
		case all:
			delete(q.given, token)
		default:
			q.tell(token, g)
		}
	})
}

// errNotGiven says that a partition is not given away yet.
var errNotGiven = errors.New("the partition is not given away")

// finish writes that events are not begun any more under a token that was given away, or (all) that nothing is.
func (q *Queue) finish(ctx context.Context, p int, token string, events []string, all bool) error {
	args := []any{partition.Prefix(p), token, all}
	for _, e := range events {
		args = append(args, e)
	}
	call := &script.Call{Script: finishScript, Keys: queues.Keys(p), Args: args}
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return err
	}
	if call.Reply() == int64(0) {
		return errNotGiven
	}
	return nil
}

// Matched notes that an event is matched, with a number of deliveries, or is in the quarantine (0). token is that
// of its Batch.
func (q *Queue) Matched(token string, company uuid.UUID, id string, fanout int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := partition.Of(company)
	if o := q.owned[p]; o != nil && o.token == token {
		o.shard.schedule.Matched(company, id, fanout)
		q.begin(o.shard)
	} else {
		q.finished(token, company.String()+"/"+id)
	}
}

// Placed notes that the deliveries of an event that must not overtake others are in their retry sets. token is that of its
// Batch.
func (q *Queue) Placed(token string, company uuid.UUID, id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.owned[partition.Of(company)]; o != nil && o.token == token {
		o.shard.schedule.Placed(company, id)
		q.begin(o.shard)
	}
}

// Ended notes that a delivery of a Batch has an outcome. wait: until it is due again; negative: never.
func (q *Queue) Ended(token string, company, subscriber uuid.UUID, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.owned[partition.Of(company)]; o != nil && o.token == token {
		o.shard.schedule.Ended(company, subscriber, q.now(), wait)
		q.arm(o.shard)
	} else {
		q.finished(token, "")
	}
}

// Waits notes that a delivery of an event, which was not in flight before, is due after a time. token is that of the
// Batch of the event.
func (q *Queue) Waits(token string, company, subscriber uuid.UUID, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.owned[partition.Of(company)]; o != nil && o.token == token {
		o.shard.schedule.Endpoint(company, subscriber, q.now(), wait)
		q.arm(o.shard)
	}
}

// Left notes that an attempt at an endpoint has ended.
func (q *Queue) Left(company, subscriber uuid.UUID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.owned[partition.Of(company)]; o != nil {
		o.shard.schedule.Left(company, subscriber, q.now())
		q.begin(o.shard)
	}
}

// Requeue has the work of a batch started again that could not be started. After an error it has changed nothing, or
// nothing but Redis: call it again.
func (q *Queue) Requeue(ctx context.Context, b Batch) error {
	p := partition.Of(b.Company)
	if len(b.Deliveries) > 0 {
		args := []any{partition.Prefix(p), b.Token, b.Company.String()}
		for _, d := range b.Deliveries {
			args = append(args, d.Subscriber.String(), d.EventID)
		}
		if err := script.Run(ctx, q.opts.Client, &script.Call{Script: unmarkScript, Keys: queues.Keys(p), Args: args}); err != nil {
			return fmt.Errorf("requeue work: %w", err)
		}
	}
	for _, d := range b.Deliveries {
		q.Ended(b.Token, b.Company, d.Subscriber, 0)
	}
	if owns := q.requeueEvents(p, b); !owns && len(b.Deliveries) > 0 {
		q.Wake(ctx, []int{p}) // the script has told the owner
	}
	return nil
}

// requeueEvents requeues the events of a batch, and reports whether this replica still owns their partition.
func (q *Queue) requeueEvents(p int, b Batch) (owns bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.owned[p]
	owns = o != nil && o.token == b.Token
	for _, e := range b.Events {
		if owns {
			o.shard.schedule.Requeue(b.Company, e.ID)
		} else {
			q.finished(b.Token, b.Company.String()+"/"+e.ID)
		}
	}
	if o != nil {
		q.begin(o.shard)
	}
	return owns
}

// EndJob notes that a step of a job has ended. The job is due again after the time again; a negative again ends the job.
func (q *Queue) EndJob(ctx context.Context, token string, company, job uuid.UUID, again time.Duration) error {
	p := partition.Of(company)
	delay := any("")
	if again >= 0 {
		delay = again.Milliseconds()
	}
	call := &script.Call{Script: endJobScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), "j:" + company.String() + "/" + job.String(), delay}}
	if err := script.Run(ctx, q.opts.Client, call); err != nil {
		return fmt.Errorf("end a step of a job: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.owned[p]; o != nil && o.token == token {
		o.shard.schedule.EndJob(company, job, q.now(), again)
		q.arm(o.shard)
	}
	return nil
}

// BeginSuspect notes that the matching of a suspect begins, under the token of its batch. It returns under how many
// other tokens the matching began and did not end: so many replicas were lost meanwhile.
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

// admitEvents removes the events from a batch that are matched, or that a former owner is matching, and marks the
// suspects. Queue.mu is held.
func (q *Queue) admitEvents(s *shard, b *Batch, suspects int) {
	o := q.owned[partition.Of(b.Company)]
	kept := b.Events[:0]
	for _, e := range b.Events {
		switch ref := b.Company.String() + "/" + e.ID; {
		case e.Value == "", isMatched(e.Value): // it has expired, or was never written
			s.schedule.Matched(b.Company, e.ID, len(e.Known))
		case o != nil && o.isElsewhere(ref):
			s.schedule.Elsewhere(b.Company, e.ID)
		default:
			e.Suspect = suspects > 0
			suspects--
			kept = append(kept, e)
		}
	}
	b.Events = kept
}

// backlogged adds to the managed subscribers of a company those whose deliveries wait behind others. Queue.mu is held.
func (q *Queue) backlogged(s *shard, company uuid.UUID, managed []uuid.UUID) []uuid.UUID {
	return append(managed, s.schedule.Backlogged(company)...)
}

// lostRanges lists the calls whose answers were lost, as turn.lua reads them.
func (o *owned) lostRanges() string {
	var ranges strings.Builder
	for _, c := range o.lostCalls {
		fmt.Fprintf(&ranges, " %d-%d", c.first, c.last)
	}
	return ranges.String()
}

// release lets the next owners begin what this replica has not finished of what it had begun.
func (q *Queue) release(ctx context.Context) (err error) {
	var left []part
	q.locked(func() {
		for token, g := range q.given {
			left = append(left, part{g.partition, token})
		}
	})
	for _, p := range left {
		if failed := q.finish(ctx, p.id, p.token, nil, true); !errors.Is(failed, errNotGiven) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
