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

const (
	recorderBatch = 512                    // outcomes in a batch
	recordRetry   = 250 * time.Millisecond // between two tries to record
)

// outcome is the new state of a delivery, to be recorded. An outcome without apply only ends the
// matching of its event.
type outcome struct {
	*work
	apply   func(delivery.Record, time.Time) delivery.Record
	next    *delivery.Record // the result of apply on base; set by the recorder
	result  *attempt.Result  // nil when nothing was sent
	learned *store.Learned   // of the endpoint; nil: nothing new
	rebased bool             // applied again, to a record that was written meanwhile
}

// ended reports whether this outcome gave the delivery its final status. It is false for a delivery that
// another replica took over and ended before.
func (o *outcome) ended() bool {
	return !o.next.Status.Live() && o.next.Status != o.base.Status
}

// consequencesQueue is the number of written batches of a shard that may wait for their consequences. The
// recorder waits while the queue is full. With the batch in process and the batch that the recorder holds,
// a shard has at most 10 batches of recorderBatch outcomes in memory, without the bodies of their events.
const consequencesQueue = 8

// recorders write outcomes, and then process their consequences: logs, metrics, health. Each shard
// has its own recorder, so that a shard that is down does not block the others. A recorder ends when it has
// nothing to do, else those of addresses that are gone would remain.
type recorders struct {
	d            *Dispatcher
	ctx          context.Context    //nolint:containedctx // end ends it
	end          context.CancelFunc // once called, outcomes are discarded
	runs         sync.WaitGroup
	consequences sync.WaitGroup

	mu      sync.Mutex // guards all below
	byShard map[string]*recorder
	closed  bool
}

func newRecorders(d *Dispatcher) *recorders {
	r := &recorders{d: d, byShard: make(map[string]*recorder)}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// record queues an outcome at the recorder of its shard. It does not wait. Each outcome takes a
// place in memory: a company whose outcomes take its share starts no more until they are recorded.
func (d *Dispatcher) record(o *outcome) {
	d.admission.Hold(o.ref.Company)
	if o.event != nil {
		d.records.push(o.event.shard, o)
	} else {
		d.records.push(d.records.shardOf(o.ref.Company), o)
	}
}

// shardOf is the address of a company's shard; "" when it is not known.
func (r *recorders) shardOf(company uuid.UUID) string {
	shard, err := partition.Shard(r.ctx, r.d.opts.Client, partition.Of(company))
	if err != nil {
		return ""
	}
	return shard
}

// push queues an outcome at the recorder of a shard, which it starts if there is none.
func (r *recorders) push(shard string, o *outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.byShard[shard]
	if one == nil {
		one = &recorder{
			d: r.d, shard: shard, written: make(chan []*outcome, consequencesQueue),
			more: make(chan struct{}, 1), refused: make(map[uuid.UUID][]*pendingWrite),
		}
		r.byShard[shard] = one
		r.runs.Go(func() { one.run(r.ctx) })
		r.consequences.Go(one.runConsequences)
	}
	one.queued = append(one.queued, o)
	one.wake()
}

// take removes the first recorderBatch outcomes that are queued at a recorder. When there are none and the
// recorder has nothing to do, take removes the recorder and reports that it has ended.
func (r *recorders) take(one *recorder) (batch []*outcome, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(one.queued), recorderBatch)
	batch = slices.Clone(one.queued[:n])
	one.queued = slices.Delete(one.queued, 0, n)
	ended = n == 0 && len(one.refused) == 0 && (r.closed || one.unprocessed.Load() == 0)
	if ended {
		delete(r.byShard, one.shard)
	}
	return batch, ended
}

// lag returns how long the oldest write under way has taken; 0 when none is under way.
func (r *recorders) lag() (longest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.byShard {
		if began := one.began.Load(); began != nil {
			longest = max(longest, r.d.opts.Now().Sub(*began))
		}
	}
	return longest
}

// close writes the queued outcomes, processes their consequences, and reports whether Redis accepted
// all outcomes before ctx ended. No outcome may be recorded after it.
func (r *recorders) close(ctx context.Context) bool {
	defer context.AfterFunc(ctx, r.d.endPublishing)()
	r.mu.Lock()
	r.closed = true
	for _, one := range r.byShard {
		one.wake()
	}
	r.mu.Unlock()
	clean := waitFor(ctx, &r.runs) && r.ctx.Err() == nil
	r.end()
	r.runs.Wait()
	r.consequences.Wait()
	r.d.endPublishing()
	return clean
}

// recorder writes outcomes in batches: those that were queued during the previous write. The script
// refuses a call when a key of one of its companies is damaged. Each company of such a call then gets
// a call of its own, and what is refused again is repeated every recordRetry. Meanwhile the recorder
// writes the outcomes of other companies.
type recorder struct {
	d      *Dispatcher
	shard  string
	queued []*outcome                // recorders.mu guards it
	more   chan struct{}             // something was queued or processed, or the recorders are closed
	began  atomic.Pointer[time.Time] // when the oldest write under way began; nil: none is under way

	refused map[uuid.UUID][]*pendingWrite // by company; run alone uses it
	retryAt time.Time                     // when refused writes are repeated

	written     chan []*outcome // run closes it
	unprocessed atomic.Int64    // written batches whose consequences are not processed
}

func (r *recorder) wake() {
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// run writes outcomes until the recorder has nothing to do. Once ctx has ended, it discards them: their
// deliveries stay noted as in flight, and the replica that takes them over repeats the
// attempts.
func (r *recorder) run(ctx context.Context) {
	defer close(r.written)
	for {
		batch, ended := r.d.records.take(r)
		retry := len(r.refused) > 0 && time.Now().After(r.retryAt) //nolint:forbidigo // paces, decides nothing
		switch {
		case len(batch) > 0 || retry:
			r.write(ctx, r.pending(batch), retry)
		case len(r.refused) > 0:
			select {
			case <-r.more:
			case <-time.After(recordRetry):
			}
		case ended:
			return
		default:
			<-r.more
		}
	}
}

// runConsequences processes the consequences of written outcomes until the recorder has ended.
func (r *recorder) runConsequences() {
	for written := range r.written {
		// After a panic the rest of the batch is skipped: no accepted event depends on it.
		_ = r.d.contain("process outcomes", written[0].ref, func() { r.d.process(r.d.publishing, written) })
		r.unprocessed.Add(-1)
		r.wake()
	}
}

// write sends writes to Redis, and with retry also the refused ones. It repeats them until Redis
// accepts or refuses them: a dropped outcome would lose its attempt. The refused writes of a company
// go before its later writes.
func (r *recorder) write(ctx context.Context, writes []*pendingWrite, retry bool) {
	began := r.d.opts.Now()
	r.began.CompareAndSwap(nil, &began)
	var todo []*pendingWrite
	for _, w := range writes {
		if company := w.Event.Company; r.refused[company] != nil {
			w.alone = true
			r.refused[company] = append(r.refused[company], w)
		} else {
			todo = append(todo, w)
		}
	}
	if retry {
		for _, refused := range r.refused {
			todo = append(todo, refused...)
		}
		clear(r.refused)
	}
	for len(todo) > 0 && ctx.Err() == nil {
		result := r.tryContained(ctx, todo)
		r.finish(result)
		todo = nil
		for _, w := range result.again {
			if !w.refused {
				todo = append(todo, w)
				continue
			}
			if w.alone {
				r.retryAt = time.Now().Add(recordRetry) //nolint:forbidigo // as in run
			}
			w.alone = true
			r.refused[w.Event.Company] = append(r.refused[w.Event.Company], w)
		}
		if result.failed != nil {
			r.d.opts.Logger.Error("outcomes not recorded, trying again", "events", len(result.again), "exception.message", result.failed)
			if len(todo) > 0 {
				pause.For(ctx, recordRetry)
			}
		}
	}
	r.finish(tried{finished: todo}) // discarded
	if len(r.refused) == 0 {
		r.began.Store(nil)
	}
}

type pendingWrite struct {
	store.Write

	outcomes []*outcome // each becomes a store.Change
	places   int        // of outcomes, freed when the write is finished
	refused  bool       // the last try failed in the script: a key may be damaged
	alone    bool       // not in one call with writes of other companies
	placed   bool       // it has the last of openEvent.first
}

// pending groups a batch into one write per event, and subtracts the outcomes from the
// event's count of deliveries left.
func (r *recorder) pending(batch []*outcome) []*pendingWrite {
	type key struct {
		event events.Ref
		token string
	}
	var writes []*pendingWrite
	index := make(map[key]*pendingWrite, len(batch))
	for _, o := range batch {
		k := key{o.ref.Ref, o.token}
		w := index[k]
		if w == nil {
			w = &pendingWrite{Write: store.Write{Event: o.ref.Ref, Token: o.token}}
			index[k] = w
			writes = append(writes, w)
		}
		w.places++
		if o.event != nil {
			if o.backlogged {
				o.event.first--
				w.placed = o.event.first == 0
			}
			if o.event.left--; o.event.left == 0 && !o.event.quarantined {
				w.Matched, w.Fanout, w.Held = true, o.event.fanout, o.event.held
			}
		}
		if o.apply != nil {
			w.outcomes = append(w.outcomes, o)
		}
	}
	return writes
}

// tried is the result of try.
type tried struct {
	again    []*pendingWrite // failed writes, and outcomes of deliveries that were changed meanwhile
	finished []*pendingWrite // all others
	written  []*outcome
	failed   error
}

// finish frees the places of finished writes, and passes on the outcomes that were written.
func (r *recorder) finish(t tried) {
	for _, o := range t.written {
		o.payload, o.source = requests.Payload{}, nil // only the attempt needs them
	}
	if len(t.written) > 0 {
		r.unprocessed.Add(1)
		r.written <- t.written
	}
	for _, w := range t.finished {
		for range w.places {
			r.d.Queue.Again(r.d.admission.Release(w.Event.Company))
		}
	}
	r.d.Queue.Freed()
}

// try sends writes to Redis once.
func (r *recorder) try(ctx context.Context, todo []*pendingWrite) (t tried) {
	now := r.d.opts.Now()
	calls := map[uuid.UUID][]*pendingWrite{} // by the only company; uuid.Nil: of several
	for _, w := range todo {
		var company uuid.UUID
		if w.alone {
			company = w.Event.Company
		}
		calls[company] = append(calls[company], w)
	}
	for _, mine := range calls {
		writes := make([]store.Write, len(mine))
		for i, w := range mine {
			w.change(r.d, now)
			writes[i] = w.Write
		}
		recorded, wakes, err := r.d.Deliveries.Record(ctx, now, writes)
		if err != nil { // a record cannot be encoded: tryContained quarantines it
			panic(err)
		}
		r.d.Queue.Wake(ctx, wakes)
		for i, answer := range recorded {
			w := mine[i]
			if _, ok := errors.AsType[*partition.FormatError](answer.Err); ok {
				t.finished = append(t.finished, w) // a replica that reads the format takes the work over and repeats the attempt
				continue
			}
			if w.refused = answer.Err != nil && store.Refused(answer.Err); answer.Err != nil {
				t.failed, t.again = answer.Err, append(t.again, w)
				continue
			}
			r.quarantine(w, answer.Found)
			r.tell(w, answer.Found, now)
			rest, written := w.settle(answer.Found)
			t.written = append(t.written, written...)
			if rest != nil {
				t.again = append(t.again, rest)
			} else {
				t.finished = append(t.finished, w)
			}
		}
	}
	return t
}

// tell tells the queue what has become of the work of a write.
func (r *recorder) tell(w *pendingWrite, found []*store.Found, now time.Time) {
	for i, o := range w.outcomes {
		wait := time.Duration(-1)
		if found[i] == nil && o.next.Status.Live() && o.next.Due != 0 {
			wait = max(0, time.UnixMilli(o.next.Due).Sub(now))
		} else if found[i] != nil && !found[i].Compacted {
			wait = 0 // it has changed meanwhile
		} else if o.next.OrderKey != "" {
			wait = 0 // the next one of its key may be due
		}
		switch {
		case o.event == nil && !o.rebased:
			r.d.Queue.Ended(w.Token, o.ref.Company, o.ref.Subscriber, wait)
		case wait >= 0:
			r.d.Queue.Waits(w.Token, o.ref.Company, o.ref.Subscriber, wait)
		}
	}
	if w.placed && !w.Matched {
		r.d.Queue.Placed(w.Token, w.Event.Company, w.Event.ID)
	}
	if w.Matched {
		r.d.Queue.Matched(w.Token, w.Event.Company, w.Event.ID, w.Fanout)
	}
}

// quarantine moves an event with unreadable deliveries to the quarantine. A delivery that
// was in its retry set is there again, and is quarantined by its next turn.
func (r *recorder) quarantine(w *pendingWrite, found []*store.Found) {
	for i, o := range w.outcomes {
		if f := found[i]; f != nil && f.Damaged && o.event != nil {
			r.d.quarantine(r.d.intake, w.Token, o.ref, nil, errDamaged)
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
			Ref: o.ref, Base: o.base, Next: o.next, InFlight: o.event == nil, Learned: o.learned, Notice: d.deathNotice(o),
		}
		w.Changes[i] = c
	}
}

// settle divides the outcomes of an answered write: done are recorded. rest has those whose
// delivery had changed, and is nil when there are none.
func (w *pendingWrite) settle(found []*store.Found) (rest *pendingWrite, done []*outcome) {
	for i, o := range w.outcomes {
		f := found[i]
		switch {
		case f != nil && f.Damaged:
			// It is in the quarantine now, or its next turn puts it there.
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
				base = &delivery.Record{Status: delivery.StatusPending, OrderKey: o.base.OrderKey, EventType: o.base.EventType, Created: o.base.Created, Previous: o.base.Previous}
			}
			o.base, o.next, o.rebased = base, nil, true
			if rest == nil {
				rest = &pendingWrite{Write: store.Write{Event: w.Event, Token: w.Token}, places: w.places, alone: w.alone}
			}
			rest.outcomes = append(rest.outcomes, o)
		}
	}
	return rest, done
}
