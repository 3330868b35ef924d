package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
)

// Bounds of the recorder. A full queue holds back who made the outcomes.
const (
	recorderQueue = 256
	recorderBatch = 512
	recorderBytes = 4 << 20 // of receivers' answers
)

// tokenFlush is how long a finished task may still be noted as in flight when
// nothing else is written.
const tokenFlush = 100 * time.Millisecond

// task is one task of the queue while its work is in flight. Only the recorder
// touches left once the task's outcomes are on their way.
type task struct {
	token string
	left  int // outcomes still to be written
}

// dispatching is an event whose dispatch is under way.
type dispatching struct {
	ref  events.Ref
	left int // outcomes still to be written; the recorder's
}

// work is one delivery that is to be attempted.
type work struct {
	ref      ref
	base     *record // what the delivery was; Version 0 when it is new
	body     []byte
	accepted time.Time // when the event was accepted
	to       *target
	task     *task
	event    *dispatching // nil when the delivery has a reference of its own
}

// outcome is what became of a delivery, on its way to be written. Without
// apply only its event or task is settled.
type outcome struct {
	work
	apply  func(record, time.Time) record
	next   *record         // what apply made of base; the recorder's
	result *webhook.Result // nil when nothing was sent
}

// bytes is the size of what a record of it holds of the receiver's answers.
func (o *outcome) bytes() int {
	n := 0
	if o.base != nil {
		for i := range o.base.Attempts {
			n += len(o.base.Attempts[i].Body)
		}
	}
	if o.result != nil {
		n += len(o.result.ResponseBody)
	}
	return n
}

// recorder gathers outcomes of all tasks and writes them in one pipeline:
// whatever came while the last write was under way. Its run method owns it.
type recorder struct {
	store   *Store
	replica string
	in      chan *outcome
	now     func() time.Time
	logger  *slog.Logger
	after   func(context.Context, []*outcome) // told what was written, in order

	finished []string // tokens of tasks whose every outcome is written
}

// run writes until in is closed. Once ctx has ended it takes what comes but
// writes no more: what is not written stays open in Redis, and is attempted
// again by whoever takes over.
func (r *recorder) run(ctx context.Context) {
	idle := time.NewTicker(tokenFlush)
	defer idle.Stop()
	for {
		select {
		case o, ok := <-r.in:
			if !ok {
				r.write(ctx, nil)
				return
			}
			r.write(ctx, r.gather(o))
		case <-idle.C:
			r.write(ctx, nil)
		}
	}
}

// gather takes what has queued, up to a bound, waiting for nothing.
func (r *recorder) gather(first *outcome) []*outcome {
	batch, bytes := []*outcome{first}, first.bytes()
	for len(batch) < recorderBatch && bytes < recorderBytes {
		select {
		case o, ok := <-r.in:
			if !ok {
				return batch
			}
			batch, bytes = append(batch, o), bytes+o.bytes()
		default:
			return batch
		}
	}
	return batch
}

// write records a batch, again and again until Redis takes it: an outcome that
// is dropped would be an attempt nobody knows of.
func (r *recorder) write(ctx context.Context, batch []*outcome) {
	if ctx.Err() != nil || len(batch) == 0 && len(r.finished) == 0 {
		return
	}
	todo := batch
	settled := settledEvents(batch)
	var written []*outcome
	for {
		conflicts, done, err := r.try(ctx, todo, settled)
		if err != nil {
			if len(todo) == 0 {
				return // only tokens, which the next write forgets
			}
			r.logger.Error("outcomes not recorded, trying again", "outcomes", len(todo), "error", err)
			if !pause(ctx, recordRetry) {
				return
			}
			continue
		}
		r.finished = nil
		written = append(written, done...)
		if todo = conflicts; len(todo) == 0 {
			break
		}
	}
	r.finished = finishedTasks(batch)
	r.after(ctx, written)
}

// recordRetry is the wait between two tries to record.
const recordRetry = 250 * time.Millisecond

// settledEvents counts the batch off its events and returns those with nothing left.
func settledEvents(batch []*outcome) map[events.Ref]bool {
	settled := make(map[events.Ref]bool)
	for _, o := range batch {
		if o.event == nil {
			continue
		}
		if o.event.left--; o.event.left <= 0 {
			settled[o.event.ref] = true
		}
	}
	return settled
}

func finishedTasks(batch []*outcome) []string {
	var tokens []string
	for _, o := range batch {
		if o.task == nil {
			continue
		}
		if o.task.left--; o.task.left == 0 {
			tokens = append(tokens, o.task.token)
		}
	}
	return tokens
}

// try writes once. Conflicts are outcomes whose delivery changed meanwhile,
// rebased on what was found.
func (r *recorder) try(ctx context.Context, todo []*outcome, settled map[events.Ref]bool) (conflicts, done []*outcome, err error) {
	now := r.now()
	writes, order := writesOf(todo, settled, now)
	found, err := r.store.record(ctx, now, writes, r.replica, r.finished)
	if err != nil {
		return nil, nil, err
	}
	for i, outcomes := range order {
		for j, o := range outcomes {
			switch rec := found[i][j]; {
			case rec == nil, o.result != nil && rec.has(*o.result): // the latter: by a try whose answer was lost
				done = append(done, o)
			case rec.Status == StatusDelivered || rec.Status == StatusCancelled:
				// Somebody else brought it to its end: it stays there.
			default:
				if rec.Version == 0 {
					rec = &record{EventType: o.base.EventType, Created: o.base.Created}
				}
				o.base, o.next = rec, nil
				conflicts = append(conflicts, o)
			}
		}
	}
	return conflicts, done, nil
}

// writesOf makes one write of the outcomes of each event; order holds the
// outcomes behind each write's changes.
func writesOf(todo []*outcome, settled map[events.Ref]bool, now time.Time) (writes []write, order [][]*outcome) {
	index := make(map[events.Ref]int, len(todo))
	for _, o := range todo {
		if o.ref.ID == "" {
			continue // a task that found nothing to do
		}
		i, ok := index[o.ref.Ref]
		if !ok {
			i = len(writes)
			index[o.ref.Ref] = i
			writes = append(writes, write{event: o.ref.Ref, settled: settled[o.ref.Ref]})
			order = append(order, nil)
		}
		if o.apply == nil {
			continue // an event without subscribers: only its dispatch is settled
		}
		if o.next == nil { // else it is tried again as it was
			next := o.apply(*o.base, now)
			next.Version = o.base.Version
			o.next = &next
		}
		writes[i].changes = append(writes[i].changes, change{ref: o.ref, base: o.base, next: o.next})
		order[i] = append(order[i], o)
	}
	return writes, order
}

// pause waits, and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
