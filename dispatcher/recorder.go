package dispatcher

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
)

// Bounds of a recorder. A full queue holds back what makes the outcomes.
const (
	recorderQueue = 256
	recorderBatch = 512
	recorderBytes = 4 << 20 // of receivers' answers
)

// outcome is what became of a delivery, on its way to be written. Without
// apply only its event is settled.
type outcome struct {
	*work
	apply   func(delivery.Record, time.Time) delivery.Record
	next    *delivery.Record // what apply made of base; the recorder's
	result  *webhook.Result  // nil when nothing was sent
	backlog bool             // it goes to its endpoint queue, for want of a place
	open    bool             // since the endpoint's breaker is open
	pause   time.Duration    // for so long its endpoint queue is not served
	rebased bool             // it is written again, on what was found
}

// bytes is the size of what a record of it holds of the receiver's answers.
func (o *outcome) bytes() int {
	if o.result == nil {
		return 0
	}
	return len(o.result.ResponseBody)
}

// recorders write outcomes, those of each shard on their own, so that a shard
// that is down holds up no other.
type recorders struct {
	d    *Dispatcher
	ctx  context.Context //nolint:containedctx // ends when the recorders give up
	end  context.CancelFunc
	runs sync.WaitGroup

	mu      sync.RWMutex
	byShard map[string]*recorder
}

func newRecorders(d *Dispatcher) *recorders {
	r := &recorders{d: d, byShard: make(map[string]*recorder)}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// record passes an outcome to the recorder of its shard. It waits while that
// has too many.
func (d *Dispatcher) record(o *outcome) {
	if o.event != nil {
		o.event.recorder.in <- o
		return
	}
	d.records.of(o.ref.Company).in <- o
}

// of finds the recorder of the shard that serves a company now.
func (r *recorders) of(company uuid.UUID) *recorder {
	shard, err := partition.Shard(r.ctx, r.d.opts.Client, partition.Of(company))
	if err != nil {
		shard = ""
	}
	r.mu.RLock()
	found := r.byShard[shard]
	r.mu.RUnlock()
	if found != nil {
		return found
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byShard[shard] == nil {
		made := &recorder{d: r.d, in: make(chan *outcome, recorderQueue)}
		r.byShard[shard] = made
		r.runs.Go(func() { made.run(r.ctx) })
	}
	return r.byShard[shard]
}

// lag is for how long the slowest recorder has tried to write what it has; 0: none
// is writing.
func (r *recorders) lag() (longest time.Duration) {
	now := r.d.opts.Now()
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, one := range r.byShard {
		if since := one.since.Load(); since != 0 {
			longest = max(longest, now.Sub(time.Unix(0, since)))
		}
	}
	return longest
}

// close writes what is left and reports whether all of it was taken before ctx
// ended. Nothing may be recorded any more.
func (r *recorders) close(ctx context.Context) bool {
	r.mu.Lock()
	for _, one := range r.byShard {
		close(one.in)
	}
	r.mu.Unlock()
	clean := waitFor(ctx, &r.runs) && r.ctx.Err() == nil
	r.end()
	r.runs.Wait()
	return clean
}

// giveUp lets the recorders take outcomes without writing them.
func (r *recorders) giveUp() { r.end() }

// recorder gathers outcomes and writes them in one pipeline: whatever came while
// the last write was under way. Its run method owns it.
type recorder struct {
	d     *Dispatcher
	in    chan *outcome
	since atomic.Int64 // unix ns at which the write under way began; 0: none is
}

// run writes until in is closed. Once ctx has ended it takes what comes but
// writes no more: what is not written stays noted as in flight, and is attempted
// again by whoever takes it over.
func (r *recorder) run(ctx context.Context) {
	for o := range r.in {
		r.since.Store(r.d.opts.Now().UnixNano())
		r.write(ctx, r.gather(o))
		r.since.Store(0)
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

// recordRetry is the wait between two tries to record.
const recordRetry = 250 * time.Millisecond

// write records a batch, again and again until Redis takes it: an outcome that
// is dropped would be an attempt nobody knows of.
func (r *recorder) write(ctx context.Context, batch []*outcome) {
	if ctx.Err() != nil {
		return
	}
	r.d.after.add(r.persist(ctx, r.pending(batch)))
}

// untilTaken writes until Redis takes it, and returns what was written.
func (r *recorder) untilTaken(ctx context.Context, todo []*pendingWrite) (written []*outcome) {
	for {
		var done []*outcome
		var failed error
		todo, done, failed = r.try(ctx, todo)
		written = append(written, done...)
		if len(todo) == 0 {
			return written
		}
		if failed != nil {
			r.d.opts.Logger.Error("outcomes not recorded, trying again", "events", len(todo), "exception.message", failed)
			if !pause.For(ctx, recordRetry) {
				return written
			}
		}
	}
}

// pendingWrite is the outcomes of one event that are written in one step.
type pendingWrite struct {
	event    events.Ref
	replica  string
	matched  bool
	fanout   int // of the event, when matched
	held     bool
	outcomes []*outcome
}

// pending makes one write of the outcomes of each event, and counts them off it.
func (r *recorder) pending(batch []*outcome) []*pendingWrite {
	type key struct {
		event   events.Ref
		replica string
	}
	var writes []*pendingWrite
	index := make(map[key]*pendingWrite, len(batch))
	for _, o := range batch {
		k := key{o.ref.Ref, o.replica}
		w := index[k]
		if w == nil {
			w = &pendingWrite{event: o.ref.Ref, replica: o.replica}
			index[k] = w
			writes = append(writes, w)
		}
		if o.event != nil {
			if o.event.left--; o.event.left == 0 {
				w.matched, w.fanout, w.held = true, o.event.fanout, o.event.held
			}
		}
		if o.apply != nil {
			w.outcomes = append(w.outcomes, o)
		}
	}
	return writes
}

// try writes once. It returns what must be written again: writes that failed, and
// outcomes whose delivery had changed meanwhile, rebased on what was found.
func (r *recorder) try(ctx context.Context, todo []*pendingWrite) (again []*pendingWrite, done []*outcome, failed error) {
	now := r.d.opts.Now()
	for len(todo) > 0 {
		replica := todo[0].replica
		var mine, others []*pendingWrite
		for _, w := range todo {
			if w.replica == replica {
				mine = append(mine, w)
			} else {
				others = append(others, w)
			}
		}
		todo = others
		writes := make([]store.Write, len(mine))
		for i, w := range mine {
			writes[i] = w.write(r.d, now)
		}
		recorded, wakes, err := r.d.deliveries.Record(ctx, now, replica, writes)
		if err != nil { // one that cannot be encoded, ever
			r.d.opts.Logger.Error("outcomes dropped", "exception.message", err)
			continue
		}
		r.d.queue.Kick(wakes...)
		for i, answer := range recorded {
			if _, ok := errors.AsType[*partition.FormatError](answer.Err); ok {
				continue // a replica that can read the partition takes it over, and attempts it again
			}
			if answer.Err != nil {
				failed, again = answer.Err, append(again, mine[i])
				continue
			}
			r.quarantine(mine[i], answer.Found)
			rest, written := mine[i].settle(answer.Found)
			done = append(done, written...)
			if rest != nil {
				again = append(again, rest)
			}
		}
	}
	return again, done, failed
}

// quarantine moves an event to the quarantine whose deliveries cannot be read. One
// that was claimed from its endpoint queue is there again, and is quarantined when it is
// claimed.
func (r *recorder) quarantine(w *pendingWrite, found []*store.Found) {
	for i, o := range w.outcomes {
		if f := found[i]; f != nil && f.Damaged && o.event != nil {
			r.d.quarantine(r.d.intake, w.replica, o.ref, nil, errDamaged)
			return
		}
	}
}

var errDamaged = errors.New("the event's deliveries cannot be read")

// write is what the store is to write.
func (w *pendingWrite) write(d *Dispatcher, now time.Time) store.Write {
	out := store.Write{
		Event: w.event, Matched: w.matched, Fanout: w.fanout, Held: w.held,
		Changes: make([]store.Change, len(w.outcomes)),
	}
	for i, o := range w.outcomes {
		if o.next == nil { // else it is tried again as it was
			next := o.apply(*o.base, now)
			next.Version = o.base.Version
			o.next = &next
		}
		c := store.Change{
			Ref: o.ref, Base: o.base, Next: o.next, Claimed: o.event == nil,
			Backlog: o.backlog, Open: o.open, Pause: o.pause, Notice: d.deathNotice(o),
		}
		if c.Claimed && !o.rebased {
			c.Reach = reach(o.result)
		}
		out.Changes[i] = c
	}
	return out
}

// settle sorts the outcomes of a write that was answered: done ones, and a write
// of those whose delivery had changed, nil when there are none.
func (w *pendingWrite) settle(found []*store.Found) (rest *pendingWrite, done []*outcome) {
	for i, o := range w.outcomes {
		f := found[i]
		switch {
		case f != nil && f.Damaged:
			// It is in the quarantine now, or its next claim puts it there.
		case f == nil, o.result != nil && f.Record.Has(requests.ResultOf(*o.result)): // the latter: by a try whose answer was lost
			done = append(done, o)
		case f.Compacted:
			// It was settled long ago: there is nothing left to add this to.
		case f.Record.Status == delivery.StatusDelivered, f.Record.Status == delivery.StatusCancelled:
			// Another replica brought it to its end: it stays there.
		case o.result == nil && f.Record.Version > 0:
			// Nothing was sent, and another replica knows better.
		default:
			base := f.Record
			if base.Version == 0 {
				base = &delivery.Record{Status: delivery.StatusPending, EventType: o.base.EventType, Created: o.base.Created}
			}
			o.base, o.next, o.rebased = base, nil, true
			if rest == nil {
				rest = &pendingWrite{event: w.event, replica: w.replica}
			}
			rest.outcomes = append(rest.outcomes, o)
		}
	}
	return rest, done
}
