package workqueue

import (
	"context"

	"github.com/google/uuid"

	"spendhook/dispatcher/schedule"
	"spendhook/events/publish"
	"spendhook/internal/partition"
)

// Token is that under which this replica owns a company's partition; "" when it does not.
func (q *Queue) Token(company uuid.UUID) string { return q.owner.Token(partition.Of(company)) }

// Accepted has accepted events matched, of companies whose partitions this replica owns: at once, or in the turn of
// their company. It does not wait. After Leave the next owner finds them.
func (q *Queue) Accepted(events []publish.Begun) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx.Err() != nil {
		return
	}
	var work []Batch
	deliveries := 0
	for _, a := range events {
		if b, n := q.start(a, deliveries); n > 0 {
			work = append(work, b)
			deliveries += n
		}
	}
	if len(work) == 0 {
		return
	}
	q.accepted.Add(int64(deliveries))
	q.serving.Go(func() {
		defer q.accepted.Add(-int64(deliveries))
		ctx, cancel := context.WithTimeout(q.turnCtx, turnTimeout)
		defer cancel()
		q.opts.Take(ctx, work)
	})
}

// start returns the batch of a company's accepted events that are to be matched at once, and their approximate number
// of deliveries: 0 when they wait for a turn. Queue.mu is held.
func (q *Queue) start(a publish.Begun, deliveries int) (b Batch, n int) {
	p, last := partition.Of(a.Company), a.Events[len(a.Events)-1].Place
	if q.owner.Token(p) != a.Token {
		return b, 0 // the next owner finds them
	}
	s := q.shardOf(p)
	if s == nil || q.owned[p].token != a.Token {
		q.early.add(p, a.Company, companyLog{a.Company, a.Cursor, last, a.Cost})
		return b, 0
	}
	n = max(1, int(a.Cost*float64(len(a.Events))))
	// Half of a free share, because several calls may see the same places.
	free := min(q.opts.Admission.Free(uuid.Nil)/2-int(q.accepted.Load())-deliveries, q.opts.Admission.Free(a.Company), turnQuantum)
	if 2*free < n || !q.started || q.full.Load() {
		if s.schedule.Has(a.Company) {
			s.schedule.Events(a.Company, last)
		} else {
			s.schedule.Load(p, a.Company, a.Cursor, last, a.Cost, 0, 0)
		}
		q.begin(s)
		return b, 0
	}
	b = Batch{Company: a.Company, Token: a.Token}
	events := make([]schedule.Event, len(a.Events))
	for i, e := range a.Events {
		events[i] = schedule.Event{Place: e.Place, Number: e.Number, ID: e.ID}
		b.Events = append(b.Events, Event{ID: e.ID, Value: e.Value})
	}
	if !s.schedule.Begin(p, a.Company, a.Cursor, a.After, a.Cost, events) {
		q.begin(s)
		return b, 0
	}
	b.subscribers(a.Version, a.Managed)
	b.Backlogged = q.backlogged(s, a.Company, b.Backlogged)
	return b, n
}

// Unsure must be called for companies with accepted events when it is not known whether Redis has them: the answer
// was lost. It does not wait.
func (q *Queue) Unsure(companies []uuid.UUID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range companies {
		q.unsure[c] = unsure{}
	}
}

// early has accepted events of companies in partitions that are not loaded yet, by partition.
type early map[int]map[uuid.UUID]companyLog

func (e early) add(p int, company uuid.UUID, log companyLog) {
	if e[p] == nil {
		e[p] = make(map[uuid.UUID]companyLog)
	}
	if was, ok := e[p][company]; ok {
		log.cursor = was.cursor
	}
	e[p][company] = log
}
