package workqueue

import (
	"context"
	_ "embed" // the scripts
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/schedule"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

var (
	//go:embed lua/turn.lua
	turnSource string
	//go:embed lua/suspect.lua
	suspectSource string
	//go:embed lua/finish.lua
	finishSource string
	//go:embed lua/endjob.lua
	endJobSource string
	//go:embed lua/unmark.lua
	unmarkSource string
	//go:embed lua/holds.lua
	holdsSource string
	//go:embed lua/untell.lua
	untellSource string
	//go:embed lua/keep.lua
	keepSource string

	turnScript    = queues.Script(turnSource, true)
	holdsScript   = queues.ReadScript(holdsSource)
	unmarkScript  = queues.Script(unmarkSource, true)
	finishScript  = queues.Script(finishSource, true)
	endJobScript  = queues.Script(endJobSource, true)
	suspectScript = queues.Script(suspectSource, true)
	untellScript  = queues.Script(untellSource, true)
	keepScript    = queues.Script(keepSource, true)
)

const (
	turnBytes   = 1 << 20              // bytes of events of one partition in a round; the last event may exceed them
	turnQuantum = 50                   // deliveries of a company in a turn, while others have work
	roundBudget = 400                  // deliveries of a round
	roundLeast  = 32                   // the smallest budget of a round
	roundTime   = 6 * time.Millisecond // how long a round should take
	turnTimeout = 10 * time.Second
	failedPause = 250 * time.Millisecond // before work is tried again whose turn has failed
)

// begin starts to serve the companies of a shard that have a turn, unless that is under way. Queue.mu is held.
func (q *Queue) begin(s *shard) {
	if s.running || !q.mayBegin(s) {
		return
	}
	s.running = true
	q.serving.Go(func() {
		for q.round(q.turnCtx, s) {
		}
	})
}

// mayBegin reports whether a company has a turn and this replica may begin work now. Queue.mu is held.
func (q *Queue) mayBegin(s *shard) bool {
	return q.started && q.ctx.Err() == nil && s.schedule.Waiting()
}

// beginAll starts to serve all shards. Queue.mu is held.
func (q *Queue) beginAll() {
	q.full.Store(false)
	for _, s := range q.shards {
		q.begin(s)
	}
}

// Freed must be called when places in this replica's memory were freed. It serves what waits for a place.
func (q *Queue) Freed() {
	if q.full.Load() {
		q.locked(q.beginAll)
	}
}

// round gives the companies of a shard that come next their turns, as many as this replica has places for. It
// returns false when there are none.
func (q *Queue) round(ctx context.Context, s *shard) bool {
	shares, others := q.opts.Admission.Holding()
	now := q.now()
	var parts []*partTurns
	var away []uuid.UUID
	goes := false
	q.locked(func() {
		if s.running = q.mayBegin(s); !s.running {
			return
		}
		if most(shares, others) == 0 {
			q.full.Store(true)
			shares, others = q.opts.Admission.Holding() // places that were freed before full was set
			if s.running = most(shares, others) > 0; !s.running {
				return
			}
			q.full.Store(false)
		}
		goes = true
		var turns []schedule.Turn
		turns, away = s.schedule.Next(now, min(s.budget, 2*most(shares, others)), turnQuantum, shares, others)
		parts = q.byPartition(turns)
	})
	q.noteAway(away)
	if len(parts) > 0 {
		q.serve(ctx, s, parts)
		q.locked(func() { s.adjust(q.now().Sub(now)) })
	}
	return goes
}

// most is the most that any company may start.
func most(shares map[uuid.UUID]int, others int) int {
	for _, share := range shares {
		others = max(others, share)
	}
	return others
}

// adjust sets the budget of the next round by how long this one took. A long round means that Redis or the CPU is
// busy: smaller rounds serve the next companies sooner.
func (s *shard) adjust(took time.Duration) {
	switch {
	case took > roundTime:
		s.budget = max(s.budget*3/4, roundLeast)
	case took < roundTime/2:
		s.budget = min(s.budget+16, roundBudget)
	}
}

// noteAway notes that companies were left out because they hold their share of this replica's memory: their
// receivers delay their work.
func (q *Queue) noteAway(companies []uuid.UUID) {
	q.metrics.skipped.Add(float64(len(companies)))
	for _, c := range companies {
		q.skipped.Add(c, q.now())
		if q.opts.Admission.Skipped(c) {
			q.Again([]uuid.UUID{c})
		}
	}
}

// SkippedSince reports whether a company got no turn at a time or later, because it held its share of this replica's
// memory.
func (q *Queue) SkippedSince(company uuid.UUID, at time.Time) bool {
	last, ok := q.skipped.Peek(company)
	return ok && !last.Before(at)
}

// Again gives companies a turn that were left out because of their share, and may start something now.
func (q *Queue) Again(companies []uuid.UUID) {
	if len(companies) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range companies {
		if s := q.shardOf(partition.Of(c)); s != nil {
			s.schedule.Again(c)
			q.begin(s)
		}
	}
}

// partTurns is the turns of one partition in a round.
type partTurns struct {
	id     int
	token  string
	lost   string        // calls whose answers were lost, as turn.lua reads them
	wait   time.Duration // of ordered subscribers, after a takeover
	turns  []schedule.Turn
	call   *script.Call
	number uint64 // of the call
}

// byPartition groups turns by their partitions, which are loaded. Queue.mu is held.
func (q *Queue) byPartition(turns []schedule.Turn) (parts []*partTurns) {
	byID := make(map[int]*partTurns)
	for _, t := range turns {
		p := byID[t.Partition]
		if p == nil {
			o := q.owned[t.Partition]
			p = &partTurns{id: t.Partition, token: o.token, lost: o.lostRanges(), wait: max(0, o.orderedAt.Sub(q.now()))}
			byID[t.Partition] = p
			parts = append(parts, p)
		}
		p.turns = append(p.turns, t)
	}
	return parts
}

// serve reads what waits for the turns of a round, and starts it.
func (q *Queue) serve(ctx context.Context, s *shard, parts []*partTurns) {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	var calls []*script.Call
	for _, p := range parts {
		p.call = q.turnCall(p, turnBytes/max(1, len(parts)/16))
		calls = append(calls, p.call)
	}
	asked := q.now()
	_ = script.Run(ctx, q.opts.Client, calls...) // each call has its own error
	var batches []Batch
	for _, p := range parts {
		q.metrics.turns.Add(float64(len(p.turns)))
		batches = append(batches, q.answer(ctx, s, p, asked)...)
	}
	if len(batches) > 0 {
		q.opts.Take(ctx, batches)
	}
}

func (q *Queue) turnCall(p *partTurns, bytes int) *script.Call {
	_, working := q.owner.Former(p.id)
	p.number = q.calls.Add(1)
	args := []any{partition.Prefix(p.id), p.token, "\n" + strings.Join(working, "\n\n") + "\n" + p.lost, bytes, p.wait.Milliseconds(), p.number, len(p.turns)}
	for _, t := range p.turns {
		var unmatched any = t.Unplaced
		if t.Unplaced < 0 {
			unmatched = ""
		}
		args = append(args, t.Company.String(), place(t.After), t.Events, place(t.KnownTo), unmatched, len(t.Again), len(t.Endpoints))
		for _, id := range t.Again {
			args = append(args, id)
		}
		for _, e := range t.Endpoints {
			args = append(args, e.Endpoint.String(), e.Most)
		}
	}
	return &script.Call{Script: turnScript, Keys: queues.Keys(p.id), Args: args}
}

// answer notes what was found for the turns of a partition, and returns the work to start.
func (q *Queue) answer(ctx context.Context, s *shard, p *partTurns, asked time.Time) (batches []Batch) {
	reply, err := p.call.Result()
	list, _ := reply.([]any)
	notOwner := len(list) == 1 && list[0] == int64(-1)
	if notOwner {
		q.owner.Lost(p.id, p.token)
	} else if err != nil && !q.owner.Refuses(err) {
		q.failed.Log(ctx, "partition", p.id, "exception.message", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if q.owner.Token(p.id) != p.token { // given away or lost meanwhile: nothing is begun
		q.notBegun(p)
		return nil
	}
	repeated := len(list) == 1 && list[0] == int64(-2) // the client has sent it again: the first answer is lost
	q.noteCall(p, err != nil || repeated)
	for i, t := range p.turns {
		var answer []any
		if err == nil && !repeated {
			answer, _ = list[i].([]any)
		}
		if len(answer) < 6 {
			if len(answer) == 1 {
				q.failed.Log(ctx, "partition", p.id, "exception.message", text(answer[0]), "company_uuid", t.Company)
			}
			s.schedule.Failed(t, now, failedPause)
			continue
		}
		a, b := readTurn(t, answer)
		b.Token, b.Asked = p.token, asked
		suspects, begun := s.schedule.Served(t, a, now)
		logged := b.Events[len(t.Again):]
		b.Events = append(b.Events[:len(t.Again)], slices.DeleteFunc(logged, func(e Event) bool { return slices.Contains(begun, e.ID) })...)
		q.admitEvents(s, &b, suspects)
		if t.Job != uuid.Nil {
			b.Jobs = []uuid.UUID{t.Job}
		}
		b.Backlogged = q.backlogged(s, b.Company, b.Backlogged)
		if !b.empty() {
			batches = append(batches, b)
		}
	}
	q.arm(s)
	return batches
}

// notBegun gives up the turns of a partition that has another owner. Queue.mu is held.
func (q *Queue) notBegun(p *partTurns) {
	o := q.owned[p.id]
	for _, t := range p.turns {
		for _, id := range t.Again {
			if o != nil && o.token == p.token { // it is being given away, and not forgotten yet
				o.shard.schedule.Requeue(t.Company, id)
			} else {
				q.finished(p.token, t.Company.String()+"/"+id)
			}
		}
	}
}

// calls is a range of numbers of calls.
type calls struct{ first, last uint64 }

// noteCall notes whether the answer of a call was lost. Queue.mu is held.
func (q *Queue) noteCall(p *partTurns, lost bool) {
	o := q.owned[p.id]
	switch {
	case o == nil:
	case !lost:
		o.answered = true
	case o.answered || len(o.lostCalls) == 0:
		o.answered = false
		o.lostCalls = append(o.lostCalls, calls{p.number, p.number})
		o.lostCalls = o.lostCalls[max(0, len(o.lostCalls)-lostCallsMost):]
	default: // no call between them was answered
		o.lostCalls[len(o.lostCalls)-1].last = p.number
	}
}
