package workqueue_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/events"
)

// queued accepts an event and has it fail at once, so that its one delivery is
// due in its endpoint queue.
func (b *bench) queued(q *workqueue.Queue, company uuid.UUID, id string) delivery.Ref {
	b.tb.Helper()
	b.accept(company, id)
	for _, batch := range b.claim(q) {
		for _, e := range batch.Events {
			b.record(q.Name(), b.overflow(batch.Company, e.ID, subscriber(company, 0)))
		}
	}
	return delivery.Ref{Ref: events.Ref{Company: company, ID: id}, Subscriber: subscriber(company, 0)}
}

// overflow appends an event's one delivery to its endpoint queue.
func (b *bench) overflow(company uuid.UUID, id string, sub uuid.UUID) store.Write {
	ref := delivery.Ref{Ref: events.Ref{Company: company, ID: id}, Subscriber: sub}
	base := &delivery.Record{Status: delivery.StatusPending, Created: time.Now().UnixMilli()}
	next := delivery.Queue(*base, delivery.ReasonBusy, time.Now())
	return store.Write{Event: ref.Ref, Matched: true, Changes: []store.Change{
		{Ref: ref, Base: base, Next: &next, Backlog: true},
	}}
}

// attempted records an attempt of a delivery that was claimed from its endpoint queue.
func (b *bench) attempted(company uuid.UUID, d workqueue.Delivery, outcome attempt.ErrorClass, reach store.Reach) store.Write {
	b.tb.Helper()
	base, err := delivery.Decode(d.Record)
	if err != nil {
		b.tb.Fatalf("claimed %q: %v", d.Record, err)
	}
	now := time.Now()
	b.attempts++ // so that no two results are alike
	res := attempt.Result{Class: outcome, StartedAt: now, Duration: time.Duration(b.attempts) * time.Millisecond}
	next := delivery.Decide(*base, res, testPolicy, now, func() float64 { return 0 })
	ref := delivery.Ref{Ref: events.Ref{Company: company, ID: d.EventID}, Subscriber: d.Subscriber}
	return store.Write{Event: ref.Ref, Changes: []store.Change{{Ref: ref, Base: base, Next: &next, Claimed: true, Reach: reach}}}
}

// deliveriesOf are the deliveries of endpoint queues in batches.
func deliveriesOf(batches []workqueue.Batch) (out []workqueue.Delivery) {
	for _, b := range batches {
		out = append(out, b.Deliveries...)
	}
	return out
}

// claimOne claims until the one delivery that is due comes.
func (b *bench) claimOne(q *workqueue.Queue) workqueue.Delivery {
	b.tb.Helper()
	for range 1000 {
		b.promote(q)
		if got := deliveriesOf(b.claim(q)); len(got) == 1 {
			return got[0]
		} else if len(got) > 1 {
			b.tb.Fatalf("claimed %d deliveries", len(got))
		}
		<-time.After(time.Millisecond) // the delivery may be due in a few ms
	}
	b.tb.Fatalf("nothing was claimed")
	return workqueue.Delivery{}
}

func (b *bench) mustBeRight() state {
	b.tb.Helper()
	s := b.read()
	if err := s.check(); err != nil {
		b.tb.Fatalf("%v\n%v", err, s)
	}
	return s
}

// A write whose answer was lost is sent again, perhaps after the same replica
// has claimed the delivery again.
func TestRepeatedRecordEndsNoLaterClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	ref := b.queued(q, company, "e")
	w := b.attempted(company, b.claimOne(q), attempt.ClassHTTP5xx, store.Unreachable)
	b.record(q.Name(), w)
	b.claimOne(q)
	b.record(q.Name(), w)
	if at := b.mustBeRight().places()[ref.String()]; len(at) != 1 || at[0] != "note of "+q.Name() {
		t.Errorf("after the repeat the delivery is in %v", at)
	}
	if fails := b.do("HGET", "es:"+company.String()+"/"+ref.Subscriber.String(), "fails"); fails != "1" {
		t.Errorf("one failure was counted as %v", fails)
	}
}

// A late outcome of a fenced replica does not queue a delivery that another replica is
// attempting.
func TestLateOutcomeQueuesNothingInFlight(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	late, q, company := b.queue("late"), b.queue("r"), companies(testPartition, 1)[0]
	b.queued(late, company, "e")
	d := b.claimOne(late)
	b.takeOver(q, late.Name())
	second := b.claimOne(q)
	b.record(q.Name(), b.attempted(company, second, attempt.ClassHTTP5xx, store.Reached))
	third := b.claimOne(q)
	w := b.attempted(company, d, attempt.ClassHTTP5xx, store.Reached)
	found := b.record(late.Name(), w)[0][0]
	if found == nil {
		t.Fatal("the late outcome replaced a newer one")
	}
	next := delivery.Decide(*found.Record, attempt.Result{Class: attempt.ClassHTTP5xx, StartedAt: time.Now()}, testPolicy, time.Now(), func() float64 { return 0 })
	next.Version = found.Record.Version
	w.Changes[0].Base, w.Changes[0].Next = found.Record, &next
	b.record(late.Name(), w)
	b.mustBeRight()
	after := b.attempted(company, third, attempt.ClassNone, store.Reached)
	b.record(q.Name(), after)
	b.mustBeRight()
}
