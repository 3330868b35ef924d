package dispatcher

import (
	"context"
	"errors"
	"slices"
	"sync"
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

const (
	recorderBatch = 512                    // outcomes in a batch
	recorderBytes = 4 << 20                // of receivers' answers in a batch
	recordRetry   = 250 * time.Millisecond // between two tries to record
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

// ended reports whether the delivery got a final status by this outcome. It had it before when another
// replica took the delivery over.
func (o *outcome) ended() bool {
	return !o.next.Status.Live() && o.next.Status != o.base.Status
}

// recorders write outcomes. Each shard has its own recorder, so that a shard that is down
// does not block the others.
type recorders struct {
	d    *Dispatcher
	ctx  context.Context    //nolint:containedctx // end ends it
	end  context.CancelFunc // from then on outcomes are taken, but not written
	runs sync.WaitGroup

	writing sync.Map // *time.Time -> the same time.Time: when each write under way began

	mu      sync.Mutex
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

func (r *recorders) of(company uuid.UUID) *recorder {
	shard, err := partition.Shard(r.ctx, r.d.opts.Client, partition.Of(company))
	if err != nil {
		shard = ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byShard[shard] == nil {
		made := &recorder{d: r.d, written: r.d.consequences.open()}
		made.more = sync.NewCond(&made.mu)
		r.byShard[shard] = made
		r.runs.Go(func() { made.run(r.ctx) })
	}
	return r.byShard[shard]
}

// lag is how long the longest write under way has taken; 0: none is under way.
func (r *recorders) lag() (longest time.Duration) {
	now := r.d.opts.Now()
	r.writing.Range(func(_, began any) bool {
		longest = max(longest, now.Sub(began.(time.Time)))
		return true
	})
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

// recorder writes outcomes in batches: those that were queued during the previous write. When the
// script refuses a write, because a key of its company is damaged, the company's outcomes are
// written by a goroutine of their own, until all of them are written. So are those of the other
// companies of the call that failed.
type recorder struct {
	d       *Dispatcher
	written chan<- []*outcome // run closes it
	apart   inTurn            // writes the outcomes of companies with a refused write
	others  sync.WaitGroup    // the goroutines of apart

	mu     sync.Mutex // guards all below
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
	defer r.others.Wait()
	for batch := r.next(); len(batch) > 0; batch = r.next() {
		apart := make(map[uuid.UUID][]*outcome)
		together := slices.DeleteFunc(batch, func(o *outcome) bool {
			company := o.ref.Company
			if apart[company] == nil && !r.apart.busy(company) {
				return false
			}
			apart[company] = append(apart[company], o)
			return true
		})
		for company, outcomes := range apart {
			r.apart.do(&r.others, company, func() { r.write(ctx, outcomes, r.pending(outcomes), true) })
		}
		r.write(ctx, together, r.pending(together), false)
	}
}

// next waits for outcomes and takes the first of them; none once all of a closed recorder are taken.
func (r *recorder) next() []*outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queued) == 0 && !r.closed {
		r.more.Wait()
	}
	n := 0
	for bytes := 0; n < len(r.queued) && n < recorderBatch && bytes < recorderBytes; n++ {
		if result := r.queued[n].result; result != nil {
			bytes += len(result.ResponseBody)
		}
	}
	batch := slices.Clone(r.queued[:n])
	r.queued = slices.Delete(r.queued, 0, n)
	return batch
}

// write records outcomes by the writes made of them, and frees their places. It retries until Redis
// accepts the writes: the attempt of a dropped outcome would not be counted. Unless the outcomes
// are written apart, the companies with a refused write are written apart from then on.
func (r *recorder) write(ctx context.Context, outcomes []*outcome, todo []*pendingWrite, apart bool) {
	if len(outcomes) == 0 {
		return
	}
	var refused map[uuid.UUID][]*pendingWrite
	if ctx.Err() == nil {
		began := r.d.opts.Now()
		r.d.records.writing.Store(&began, began)
		defer r.d.records.writing.Delete(&began)
		var written []*outcome
		written, refused = r.persist(ctx, todo, apart)
		for _, o := range written {
			o.payload = requests.Payload{} // only the attempt needs it
		}
		if len(written) > 0 {
			r.written <- written
		}
	}
	left := make(map[uuid.UUID][]*outcome)
	for _, o := range outcomes {
		if company := o.ref.Company; refused[company] != nil {
			left[company] = append(left[company], o)
		} else {
			r.d.claimAgain(r.d.admission.Release(company))
		}
	}
	r.d.queue.Freed()
	for company, writes := range refused {
		r.apart.do(&r.others, company, func() { r.write(ctx, left[company], writes, true) })
	}
}

// writeAll writes until Redis accepts everything, except writes of companies with a refused write:
// unless these are written apart, it returns them.
func (r *recorder) writeAll(ctx context.Context, todo []*pendingWrite, apart bool) (written []*outcome, refused map[uuid.UUID][]*pendingWrite) {
	refused = make(map[uuid.UUID][]*pendingWrite)
	for {
		again, done, failed := r.try(ctx, todo)
		written, todo = append(written, done...), again
		if failed != nil {
			r.d.opts.Logger.Error("outcomes not recorded, trying again", "events", len(todo), "exception.message", failed)
			if !apart {
				todo = withoutRefused(todo, refused)
			}
		}
		if len(todo) == 0 || failed != nil && !pause.For(ctx, recordRetry) {
			return written, refused
		}
	}
}

// withoutRefused moves the writes of companies with a refused write to refused, and returns the others.
func withoutRefused(todo []*pendingWrite, refused map[uuid.UUID][]*pendingWrite) (others []*pendingWrite) {
	for _, w := range todo {
		if w.refused {
			refused[w.Event.Company] = []*pendingWrite{}
		}
	}
	for _, w := range todo {
		if of, ok := refused[w.Event.Company]; ok {
			refused[w.Event.Company] = append(of, w)
		} else {
			others = append(others, w)
		}
	}
	return others
}

type pendingWrite struct {
	store.Write

	replica  string
	outcomes []*outcome // each try makes the changes of them
	refused  bool       // the last try failed in the script: a key may be damaged
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
			w = &pendingWrite{Write: store.Write{Event: o.ref.Ref}, replica: o.replica}
			index[k] = w
			writes = append(writes, w)
		}
		if o.event != nil {
			if o.event.left--; o.event.left == 0 {
				w.Matched, w.Fanout, w.Held = true, o.event.fanout, o.event.held
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
	byReplica := map[string][]*pendingWrite{}
	for _, w := range todo {
		byReplica[w.replica] = append(byReplica[w.replica], w)
	}
	for replica, mine := range byReplica {
		writes := make([]store.Write, len(mine))
		for i, w := range mine {
			w.change(r.d, now)
			writes[i] = w.Write
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
				mine[i].refused = store.Refused(answer.Err)
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

func (w *pendingWrite) change(d *Dispatcher, now time.Time) {
	w.Changes = make([]store.Change, len(w.outcomes))
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
		w.Changes[i] = c
	}
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
		case (o.result == nil || o.result.Aborted()) && f.Record.Version > 0:
			// There is no attempt to add, and the record of another replica is newer.
		default:
			base := f.Record
			if base.Version == 0 {
				base = &delivery.Record{Status: delivery.StatusPending, EventType: o.base.EventType, Created: o.base.Created}
			}
			o.base, o.next, o.rebased = base, nil, true
			if rest == nil {
				rest = &pendingWrite{Write: store.Write{Event: w.Event}, replica: w.replica}
			}
			rest.outcomes = append(rest.outcomes, o)
		}
	}
	return rest, done
}
