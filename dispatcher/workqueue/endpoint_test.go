package workqueue_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
)

// overflowed fills an endpoint queue with n deliveries, none of them claimed yet.
func (b *bench) overflowed(q *workqueue.Queue, company uuid.UUID, n int) {
	b.tb.Helper()
	b.accept(company, ids("e", n)...)
	var writes []store.Write
	for _, batch := range b.claim(q) {
		for _, e := range batch.Events {
			writes = append(writes, b.overflow(company, e.ID, subscriber(company, 0)))
		}
	}
	b.record(q.Name(), writes...)
}

// The in-flight limit of an endpoint queue holds over all replicas. Recording an outcome
// frees a place and makes the queue claimable again.
func TestEndpointLimitHoldsOverReplicas(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	first, second, company := b.queue("a"), b.queue("b"), companies(testPartition, 1)[0]
	b.overflowed(first, company, 20)
	got := deliveriesOf(b.claimMost(first, 2).Batches)
	got = append(got, deliveriesOf(b.claimMost(second, 50).Batches)...)
	if len(got) != testLimit {
		t.Fatalf("%d deliveries are in flight", len(got))
	}
	es := "es:" + company.String() + "/" + got[0].Subscriber.String()
	if b.do("HGET", es, "full") == nil {
		t.Error("the queue is at its limit and is not marked")
	}
	if c := b.claimMost(second, 50); len(c.Batches) > 0 || c.Wake {
		t.Errorf("at the limit a claim gave %+v", c)
	}
	b.mustBeRight()
	b.record(first.Name(), b.attempted(company, got[0], attempt.ClassNone, store.Reached))
	b.mustBeRight()
	if b.do("HGET", es, "full") != nil {
		t.Error("a place is free and the queue is marked as full")
	}
	if got := deliveriesOf(b.claimMost(second, 50).Batches); len(got) != 1 {
		t.Errorf("one place was free, %d were claimed", len(got))
	}
}

// The endpoint queues of a company on one host share the host's limit evenly. Empty queues
// and queues of other hosts do not count.
func TestEndpointQueuesShareTheirHost(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0] // 4 at a host, 3 at an endpoint
	for n, host := range []string{"h", "h", "h", "other"} {
		b.do("HSET", "s:"+company.String(), subscriber(company, n).String(), `{"name":"\"callbackUrl\":\"https://x/","callbackUrl":"https://`+host+`/`+strconv.Itoa(n)+`"}`)
	}
	b.accept(company, ids("e", 20)...)
	var writes []store.Write
	for _, batch := range b.claim(q) {
		for _, e := range batch.Events {
			w := b.overflow(company, e.ID, subscriber(company, 0))
			for _, n := range []int{1, 3} { // the third has no work
				w.Changes = append(w.Changes, b.overflow(company, e.ID, subscriber(company, n)).Changes...)
			}
			writes = append(writes, w)
		}
	}
	b.record(q.Name(), writes...)
	inFlight := map[uuid.UUID]int{}
	end := map[uuid.UUID]workqueue.Delivery{}
	claim := func() {
		for _, d := range deliveriesOf(b.claimMost(q, 400).Batches) {
			inFlight[d.Subscriber]++
			end[d.Subscriber] = d
		}
	}
	claim()
	first := subscriber(company, 0)
	for len(end) > 0 { // the first one had all places until the second came
		for sub, d := range end {
			delete(end, sub)
			if sub == first && inFlight[sub] > 2 {
				b.record(q.Name(), b.attempted(company, d, attempt.ClassNone, store.Reached))
				inFlight[sub]--
			}
		}
		claim()
	}
	if n := inFlight[subscriber(company, 1)]; inFlight[first] != 2 || n != 2 || inFlight[subscriber(company, 3)] != testLimit {
		t.Errorf("in flight: %v", inFlight)
	}
	b.mustBeRight()
}

// The hash of deliveries in flight expires after an hour. The queue is then served as if
// nothing were in flight.
func TestEndpointQueueIsServedAfterItsInFlightHashExpired(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	b.overflowed(q, company, 20)
	got := deliveriesOf(b.claim(q))
	b.do("DEL", "ef:"+company.String()+"/"+got[0].Subscriber.String())
	for _, d := range got {
		b.record(q.Name(), b.attempted(company, d, attempt.ClassNone, store.Reached))
	}
	b.mustBeRight()
	if got := deliveriesOf(b.claim(q)); len(got) != testLimit {
		t.Errorf("%d were claimed", len(got))
	}
}

// Deliveries of a lost replica are due at once, and their places are free.
func TestTakeoverFreesPlaces(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	lost, q, company := b.queue("a"), b.queue("b"), companies(testPartition, 1)[0]
	b.overflowed(lost, company, 20)
	late := deliveriesOf(b.claim(lost))
	if n := b.takeOver(q, lost.Name()); n != testLimit {
		t.Errorf("%d notes were requeued", n)
	}
	b.mustBeRight()
	got := deliveriesOf(b.claim(q))
	if len(got) != testLimit {
		t.Fatalf("%d were claimed after the takeover", len(got))
	}
	for _, d := range late { // late outcomes of the lost replica free no place of its successor
		b.record(lost.Name(), b.attempted(company, d, attempt.ClassHTTP5xx, store.Unreachable))
	}
	s := b.mustBeRight()
	e := company.String() + "/" + late[0].Subscriber.String()
	if n := len(s.pairs("ef:" + e)); n != testLimit {
		t.Errorf("%d are in flight", n)
	}
	if c := b.claimMost(q, 10); len(deliveriesOf(c.Batches)) > 0 {
		t.Errorf("claimed beyond the limit: %+v", c)
	}
}

// An open breaker lets one delivery through for each pause. All deliveries behind the
// breaker are one entry of the due set.
func TestBreakerOfAnEndpointQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	b.breaker(time.Hour)
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	b.overflowed(q, company, 300)
	e := company.String() + "/" + subscriber(company, 0).String()
	for _, d := range deliveriesOf(b.claim(q)) {
		b.record(q.Name(), b.attempted(company, d, attempt.ClassHTTP5xx, store.Unreachable))
	}
	for probe := range 3 {
		b.claim(q)
		s := b.mustBeRight()
		if n := len(s.pairs("due")); n > 2 || s.pairs("due")["e:"+e] == "" {
			t.Fatalf("the due set is %v", s.pairs("due"))
		}
		b.promote(q)
		if got := deliveriesOf(b.claim(q)); len(got) > 0 {
			t.Fatalf("%d were claimed within the pause", len(got))
		}
		b.do("HSET", "es:"+e, "until", 0) // the pause is over
		b.do("ZADD", "due", 0, "e:"+e)
		b.promote(q)
		got := deliveriesOf(b.claim(q))
		if len(got) != 1 {
			t.Fatalf("probe %d: %d were claimed", probe, len(got))
		}
		if more := deliveriesOf(b.claim(q)); len(more) > 0 {
			t.Fatalf("%d were claimed beside the probe", len(more))
		}
		outcome, reach := attempt.ClassHTTP5xx, store.Unreachable
		if probe == 2 {
			outcome, reach = attempt.ClassNone, store.Reached
		}
		b.record(q.Name(), b.attempted(company, got[0], outcome, reach))
	}
	b.mustBeRight()
	if got := deliveriesOf(b.claim(q)); len(got) != testLimit {
		t.Errorf("after a probe that succeeded %d were claimed", len(got))
	}
}

// A replica with an open breaker sets its pause on the endpoint queue.
func TestBreakerOpensByAnOverflow(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	b.accept(company, ids("e", 5)...)
	for _, e := range b.claim(q)[0].Events {
		w := b.overflow(company, e.ID, subscriber(company, 0))
		w.Changes[0].Open, w.Changes[0].Pause = true, time.Hour
		b.record(q.Name(), w)
	}
	if got := deliveriesOf(b.claim(q)); len(got) > 0 {
		t.Errorf("%d were claimed", len(got))
	}
	if s := b.mustBeRight(); len(s.pairs("due")) > 2 {
		t.Errorf("the due set is %v", s.pairs("due"))
	}
}

// The backlog mark of a company lasts until its endpoint queue is empty.
func TestBacklogMarkLastsUntilTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	b.overflowed(q, company, testLimit+1)
	b.accept(company, "new")
	marked := func() bool {
		claimed := b.claim(q)
		if len(claimed) == 0 {
			return false
		}
		for _, d := range claimed[0].Deliveries {
			b.record(q.Name(), b.attempted(company, d, attempt.ClassNone, store.Reached))
		}
		return len(claimed[0].Backlogged) == 1
	}
	if !marked() {
		t.Error("a company with a backlog was claimed without its mark")
	}
	marked()
	if n := b.do("EXISTS", "bl:"+company.String()); n != int64(0) {
		t.Error("the queue is empty and the mark is there")
	}
}

// A job that becomes due again while it waits, or while it is under way, waits once.
func TestDueJobWaitsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company, job := b.queue("a"), companies(testPartition, 1)[0], uuid.NewString()
	isDue := func() {
		b.do("ZADD", "due", 0, "j:"+company.String()+"/"+job)
		b.promote(q)
	}
	isDue()
	isDue()
	if n := b.do("LLEN", "jq:"+company.String()); n != int64(1) {
		t.Errorf("the job waits %v times", n)
	}
	b.claim(q)
	isDue()
	b.takeOver(b.queue("b"), q.Name())
	if n := b.do("LLEN", "jq:"+company.String()); n != int64(1) {
		t.Errorf("after a takeover the job waits %v times", n)
	}
	b.mustBeRight()
}

// Each promote call promotes one page of due queues.
func TestPromotePages(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	p := partition.Prefix(testPartition)
	for i := range 450 {
		e := company.String() + "/" + uuid.NewSHA1(company, fmt.Append(nil, i)).String()
		b.client.ZAdd(t.Context(), p+"eq:"+e, z(0, "e"))
		b.client.ZAdd(t.Context(), p+"due", z(float64(i), "e:"+e))
	}
	for i, want := range []int64{200, 400, 450} {
		if woke := b.promote(q); woke != (i == 0) {
			t.Errorf("call %d wakes: %v", i, woke)
		}
		if n := b.do("ZCARD", "dq:"+company.String()); n != want {
			t.Errorf("after call %d %v are in turn", i, n)
		}
	}
}
