package dispatcher

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/requests"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
)

// Bounds of a batch.
const (
	recorderBatch = 512
	recorderBytes = 4 << 20 // of receivers' answers
)

// outcome is the new state of a delivery, to be recorded. Without apply, only the matching
// of its event ends.
type outcome struct {
	*work
	apply   func(delivery.Record, time.Time) delivery.Record
	next    *delivery.Record // the result of apply on base; set by the recorder
	result  *attempt.Result  // nil when nothing was sent
	backlog bool             // goes to its endpoint queue, because there is no place
	open    bool             // goes to its endpoint queue, because the breaker is open
	pause   time.Duration    // how long the endpoint queue must not be served
	rebased bool             // applied again, to a record that was written meanwhile
}

// bytes is the size of the receiver's answer in the record.
func (o *outcome) bytes() int {
	if o.result == nil {
		return 0
	}
	return len(o.result.ResponseBody)
}

// recorders write outcomes. Each shard has its own recorder, so that a shard that is down
// does not block the others.
type recorders struct {
	d    *Dispatcher
	ctx  context.Context //nolint:containedctx // discard and close end it
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

// record queues an outcome at the recorder of its shard. It does not wait: the outcome takes a
// place in memory, and a company whose outcomes take its share claims no more until they are
// recorded.
func (d *Dispatcher) record(o *outcome) {
	d.admission.Hold(o.ref.Company)
	if o.event != nil {
		o.event.recorder.push(o)
		return
	}
	d.records.of(o.ref.Company).push(o)
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
		made := &recorder{d: r.d, written: r.d.after.open()}
		made.more = sync.NewCond(&made.mu)
		r.byShard[shard] = made
		r.runs.Go(func() { made.run(r.ctx) })
	}
	return r.byShard[shard]
}

// lag is how long the slowest recorder has been writing its present batch; 0: no recorder
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

// close writes the queued outcomes and reports whether Redis accepted all of them before
// ctx ended. No outcome may be recorded after it.
func (r *recorders) close(ctx context.Context) bool {
	r.mu.Lock()
	for _, one := range r.byShard {
		one.close()
	}
	r.mu.Unlock()
	clean := waitFor(ctx, &r.runs) && r.ctx.Err() == nil
	r.end()
	r.runs.Wait()
	return clean
}

// discard makes the recorders take outcomes without writing them.
func (r *recorders) discard() { r.end() }

// recorder writes outcomes in batches. A batch has the outcomes that were queued during the
// previous write. Only the run method writes.
type recorder struct {
	d       *Dispatcher
	since   atomic.Int64      // unix ns at which the write under way began; 0: none is
	written chan<- []*outcome // run closes it

	mu     sync.Mutex
	more   *sync.Cond // something was queued, or the recorder is closed
	queued []*outcome
	closed bool
}

func (r *recorder) push(o *outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued = append(r.queued, o)
	r.more.Signal()
}

// close ends run once all queued outcomes are written.
func (r *recorder) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.more.Signal()
}

// run writes outcomes until the recorder is closed. Once ctx has ended, it discards them: their
// deliveries stay noted as in flight, and the replica that takes them over repeats the
// attempts.
func (r *recorder) run(ctx context.Context) {
	defer close(r.written)
	for batch := r.next(); len(batch) > 0; batch = r.next() {
		r.since.Store(r.d.opts.Now().UnixNano())
		r.write(ctx, batch)
		r.since.Store(0)
		for _, o := range batch {
			r.d.mayClaim(r.d.admission.Release(o.ref.Company))
		}
		r.d.queue.Freed()
	}
}

// next waits for outcomes and takes the first of them, up to the bounds; none once the recorder
// is closed and all were taken.
func (r *recorder) next() []*outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queued) == 0 && !r.closed {
		r.more.Wait()
	}
	n := 0
	for bytes := 0; n < len(r.queued) && n < recorderBatch && bytes < recorderBytes; n++ {
		bytes += r.queued[n].bytes()
	}
	batch := slices.Clone(r.queued[:n])
	r.queued = slices.Delete(r.queued, 0, n)
	return batch
}

// recordRetry is the wait between two tries to record.
const recordRetry = 250 * time.Millisecond

// write records a batch and retries until Redis accepts it: the attempt of a dropped outcome
// would not be counted.
func (r *recorder) write(ctx context.Context, batch []*outcome) {
	if ctx.Err() != nil {
		return
	}
	written := r.persist(ctx, r.pending(batch))
	for _, o := range written {
		o.payload = requests.Payload{} // only the attempt needs it
	}
	if len(written) > 0 {
		r.written <- written
	}
}

// writeAll retries until Redis accepts all writes, and returns the written outcomes.
func (r *recorder) writeAll(ctx context.Context, todo []*pendingWrite) (written []*outcome) {
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

// pending groups a batch into one write per event, and subtracts the outcomes from the
// event's count of deliveries left.
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

// try writes once. again has the writes to repeat: failed ones, and outcomes of deliveries
// that were changed meanwhile, applied to the new record.
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
		if err != nil { // a record cannot be encoded: a retry would fail too
			r.d.opts.Logger.Error("outcomes dropped", "exception.message", err)
			continue
		}
		r.d.queue.Kick(wakes...)
		for i, answer := range recorded {
			if _, ok := errors.AsType[*partition.FormatError](answer.Err); ok {
				continue // a replica that reads the format takes the work over and repeats the attempt
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

// quarantine moves an event with unreadable deliveries to the quarantine. A delivery that
// was claimed from its endpoint queue is back in that queue, and is quarantined on its next
// claim.
func (r *recorder) quarantine(w *pendingWrite, found []*store.Found) {
	for i, o := range w.outcomes {
		if f := found[i]; f != nil && f.Damaged && o.event != nil {
			r.d.quarantine(r.d.intake, w.replica, o.ref, nil, errDamaged)
			return
		}
	}
}

var errDamaged = errors.New("the event's deliveries cannot be read")

// write returns the write in the form of the store.
func (w *pendingWrite) write(d *Dispatcher, now time.Time) store.Write {
	out := store.Write{
		Event: w.event, Matched: w.matched, Fanout: w.fanout, Held: w.held,
		Changes: make([]store.Change, len(w.outcomes)),
	}
	for i, o := range w.outcomes {
		if o.next == nil { // a retry writes the same record again
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

// settle sorts the outcomes of an answered write: done, and rest with the outcomes whose
// delivery had changed (nil when there are none).
func (w *pendingWrite) settle(found []*store.Found) (rest *pendingWrite, done []*outcome) {
	for i, o := range w.outcomes {
		f := found[i]
		switch {
		case f != nil && f.Damaged:
			// It is in the quarantine now, or its next claim puts it there.
		case f == nil, o.result != nil && f.Record.Has(*o.result): // has the attempt: an earlier try wrote it, its answer was lost
			done = append(done, o)
		case f.Compacted:
			// The event was compacted: there is no record to add the outcome to.
		case f.Record.Status == delivery.StatusDelivered, f.Record.Status == delivery.StatusCancelled:
			// Another replica has ended the delivery: its status stays.
		case o.result == nil && f.Record.Version > 0:
			// Nothing was sent, and the record of another replica is newer.
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
