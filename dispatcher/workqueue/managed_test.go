package workqueue_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
)

var (
	configureScript = queues.Script(`return configure(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], work_time(ARGV[1]))`, true)
	pauseScript     = queues.Script(`return pause(ARGV[1], ARGV[2], ARGV[3], 'TEST', clock())`, true)
	resumeScript    = queues.Script(`return resume(ARGV[1], ARGV[2], ARGV[3], work_time(ARGV[1]))`, true)
)

// settings are how an endpoint queue is to be served.
type settings struct {
	interval, burst, ordered, pauseOnDead any // "" when it is not
}

var (
	plain   = settings{"", "", "", ""}
	ordered = settings{"", "", "1", ""}
)

func (b *bench) configure(sub uuid.UUID, company uuid.UUID, s settings) {
	b.tb.Helper()
	p := partition.Of(company)
	err := configureScript.Run(b.ctx, b.client, queues.Keys(p), partition.Prefix(p), company.String(), sub.String(),
		s.interval, s.burst, s.ordered, s.pauseOnDead).Err()
	if err != nil {
		b.tb.Fatalf("configure: %v", err)
	}
}

func (b *bench) pauseEndpoint(company, sub uuid.UUID) {
	b.tb.Helper()
	p := partition.Of(company)
	if err := pauseScript.Run(b.ctx, b.client, queues.Keys(p), partition.Prefix(p), company.String(), sub.String()).Err(); err != nil && err.Error() != "redis: nil" {
		b.tb.Fatalf("pause: %v", err)
	}
}

func (b *bench) resumeEndpoint(company, sub uuid.UUID) {
	b.tb.Helper()
	p := partition.Of(company)
	if err := resumeScript.Run(b.ctx, b.client, queues.Keys(p), partition.Prefix(p), company.String(), sub.String()).Err(); err != nil {
		b.tb.Fatalf("resume: %v", err)
	}
}

// overflowAll appends the deliveries of the claimed events to their endpoint queue.
func (b *bench) overflowAll(replica string, batches []workqueue.Batch) {
	b.tb.Helper()
	for _, batch := range batches {
		for _, e := range batch.Events {
			b.record(replica, b.overflow(batch.Company, e.ID, subscriber(batch.Company, 0)))
		}
	}
}

// succeed records the claimed deliveries as delivered.
func (b *bench) succeed(q *workqueue.Queue, company uuid.UUID, batches []workqueue.Batch) {
	b.tb.Helper()
	for _, d := range deliveriesOf(batches) {
		b.record(q.Name(), b.attempted(company, d, attempt.ClassNone, store.Reached))
	}
}

func eventIDs(ds []workqueue.Delivery) (out []string) {
	for _, d := range ds {
		out = append(out, d.EventID)
	}
	return out
}

// Each claim lists the subscribers whose deliveries must go through their endpoint queue.
func TestManagedEndpointIsAlwaysQueued(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	sub := subscriber(company, 0)
	for _, step := range []struct {
		what   string
		do     func()
		queued bool
	}{
		{"ordered", func() { b.configure(sub, company, ordered) }, true},
		{"not ordered any more", func() { b.configure(sub, company, plain) }, false},
		{"paused", func() { b.pauseEndpoint(company, sub) }, true},
		{"ordered and paused", func() { b.configure(sub, company, ordered) }, true},
		{"resumed", func() { b.resumeEndpoint(company, sub) }, true},
		{"with a rate", func() { b.configure(sub, company, settings{1, 1, "", ""}) }, true},
		{"plain", func() { b.configure(sub, company, plain) }, false},
	} {
		step.do()
		b.accept(company, strings.ReplaceAll(step.what, " ", "-"))
		batches := b.claim(q)
		if got := slices.Contains(batches[0].Backlogged, sub); got != step.queued {
			t.Errorf("%s: backlogged %v", step.what, got)
		}
		b.overflowAll(q.Name(), batches)
		b.succeed(q, company, batches)
		b.mustBeRight()
		if step.what == "paused" || step.what == "ordered and paused" {
			continue
		}
		eventually(t, "the delivery is claimed", func() bool {
			b.promote(q)
			b.succeed(q, company, b.claim(q))
			return b.do("EXISTS", "eq:"+company.String()+"/"+sub.String()) == int64(0)
		})
		b.mustBeRight()
	}
}

// Deliveries of an ordered subscriber are claimed one at a time, in the order in
// which their events were accepted, whichever replica matches them first.
func TestOrderedIsClaimedInOrder(t *testing.T) {
	t.Parallel()
	for name, early := range map[string]func(*bench, *workqueue.Queue, uuid.UUID, ...string) []workqueue.Batch{
		"claimed later": func(b *bench, q *workqueue.Queue, company uuid.UUID, ids ...string) []workqueue.Batch {
			b.accept(company, ids...)
			return b.claim(q)
		},
		"claimed when accepted": func(b *bench, q *workqueue.Queue, company uuid.UUID, ids ...string) []workqueue.Batch {
			return b.acceptFor(q, 10, company, ids...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redisOf(t))
			first, second, company := b.queue("a"), b.queue("b"), companies(testPartition, 1)[0]
			b.configure(subscriber(company, 0), company, ordered)
			batches := early(b, first, company, "e-0", "e-1", "e-2")
			b.accept(company, "e-3", "e-4")
			b.overflowAll(second.Name(), b.claim(second))
			b.mustBeRight()
			if got := deliveriesOf(b.claim(second)); len(got) > 0 {
				t.Fatalf("%v were claimed before earlier events were matched", eventIDs(got))
			}
			b.overflowAll(first.Name(), batches)
			b.mustBeRight()
			var got []string
			for range 5 {
				d := b.claimOne(second)
				if more := deliveriesOf(b.claim(first)); len(more) > 0 {
					t.Fatalf("%v were claimed while %s is in flight", eventIDs(more), d.EventID)
				}
				got = append(got, d.EventID)
				b.record(second.Name(), b.attempted(company, d, attempt.ClassNone, store.Reached))
				b.mustBeRight()
			}
			if want := []string{"e-0", "e-1", "e-2", "e-3", "e-4"}; !slices.Equal(got, want) {
				t.Errorf("claimed in the order %v", got)
			}
		})
	}
}

// A failed delivery of an ordered subscriber holds back the later ones until it is
// delivered.
func TestFailingHeadHoldsOrderedQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	b.configure(subscriber(company, 0), company, ordered)
	b.overflowed(q, company, 3)
	var got []string
	for _, outcome := range []attempt.ErrorClass{attempt.ClassHTTP5xx, attempt.ClassHTTP5xx, attempt.ClassHTTP5xx, attempt.ClassNone, attempt.ClassNone, attempt.ClassHTTP5xx, attempt.ClassNone} {
		d := b.claimOne(q)
		got = append(got, d.EventID)
		b.record(q.Name(), b.attempted(company, d, outcome, store.Reached))
		b.mustBeRight()
	}
	if want := []string{"e-0", "e-0", "e-0", "e-0", "e-1", "e-2", "e-2"}; !slices.Equal(got, want) {
		t.Errorf("attempted in the order %v", got)
	}
}

// After a replica is lost, its attempt to an ordered subscriber is repeated only when the
// lost attempt must have timed out.
func TestOrderedWaitsForAttemptOfLostReplica(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	lost, q, company := b.queue("a"), b.queue("b"), companies(testPartition, 1)[0]
	b.configure(subscriber(company, 0), company, ordered)
	b.overflowed(lost, company, 2)
	d := b.claimOne(lost)
	b.takeOver(q, lost.Name())
	b.mustBeRight()
	b.promote(q)
	if got := deliveriesOf(b.claim(q)); len(got) > 0 {
		t.Fatalf("%v were claimed at once", eventIDs(got))
	}
	e := company.String() + "/" + d.Subscriber.String()
	b.do("HSET", "es:"+e, "held", 0) // the time is over
	b.do("ZADD", "due", 0, "e:"+e)
	if next := b.claimOne(q); next.EventID != d.EventID {
		t.Errorf("%s was claimed before %s", next.EventID, d.EventID)
	}
}

// The retry of an ordered subscriber's first delivery is due on schedule, also when a later delivery
// waits for the attempt of a lost replica.
func TestFirstRetryOfAnOrderedQueueIsDueOnSchedule(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, lost, company := b.queue("a"), b.queue("b"), companies(testPartition, 1)[0]
	b.overflowed(q, company, 1)
	fail := func(d workqueue.Delivery) {
		b.record(q.Name(), b.attempted(company, d, attempt.ClassHTTP5xx, store.Reached))
	}
	fail(b.claimOne(q))
	first := b.claimOne(q)
	b.accept(company, "later")
	b.overflowAll(lost.Name(), b.claim(lost))
	b.claimOne(lost)
	b.configure(subscriber(company, 0), company, ordered)
	b.takeOver(q, lost.Name())
	fail(first) // the retry is due in 1 ms
	b.mustBeRight()
}

// A dead delivery of an ordered subscriber releases the next one, or pauses the subscriber.
func TestDeadDeliveryReleasesOrPausesAnOrderedQueue(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]settings{"continue": ordered, "pause": {"", "", "1", "1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redisOf(t))
			q, company := b.queue("a"), companies(testPartition, 1)[0]
			sub := subscriber(company, 0)
			b.configure(sub, company, s)
			b.overflowed(q, company, 2)
			b.record(q.Name(), b.attempted(company, b.claimOne(q), attempt.ClassGone, store.Reached))
			b.mustBeRight()
			b.promote(q)
			if n, want := len(deliveriesOf(b.claim(q))), map[string]int{"continue": 1, "pause": 0}[name]; n != want {
				t.Fatalf("%d claimed after a dead delivery, want %d", n, want)
			}
			if name == "continue" {
				return
			}
			if why := b.do("HGET", "es:"+company.String()+"/"+sub.String(), "why"); why != "DEAD" {
				t.Errorf("paused since %v", why)
			}
			b.resumeEndpoint(company, sub)
			if d := b.claimOne(q); d.EventID != "e-1" {
				t.Errorf("claimed %s", d.EventID)
			}
		})
	}
}

// A rate limit holds over all replicas from the first delivery on. A queue at its rate
// limit is not offered to claims.
func TestRateOfAnEndpointQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	first, second, company := b.queue("a"), b.queue("b"), companies(testPartition, 1)[0]
	sub := subscriber(company, 0)
	b.configure(sub, company, settings{3_600_000, 2, "", ""})
	b.overflowed(first, company, 20)
	c := b.claimMost(first, 1)
	got := deliveriesOf(c.Batches)
	c = b.claimMost(second, 50)
	got = append(got, deliveriesOf(c.Batches)...)
	if len(got) != 2 || c.Next < 50*time.Minute || c.Next > time.Hour {
		t.Fatalf("%d were claimed, the next one in %v", len(got), c.Next)
	}
	for i, d := range got {
		b.record([]string{first.Name(), second.Name()}[i], b.attempted(company, d, attempt.ClassNone, store.Reached))
	}
	s := b.mustBeRight()
	if s.scores("dq:" + company.String())[sub.String()] != 0 {
		t.Error("the queue is offered while its rate allows nothing")
	}
	// The time passes.
	b.do("HINCRBYFLOAT", "es:"+company.String()+"/"+sub.String(), "tat", -3_600_000*1.5)
	b.do("ZADD", "due", 0, "e:"+company.String()+"/"+sub.String())
	if got := deliveriesOf(b.claimMost(second, 50).Batches); len(got) != 1 {
		t.Errorf("%d were claimed an hour and a half later", len(got))
	}
	b.configure(sub, company, plain)
	if got := deliveriesOf(b.claimMost(second, 50).Batches); len(got) != testLimit-1 {
		t.Errorf("%d were claimed without the rate", len(got))
	}
	b.mustBeRight()
}

// A place that is freed at a paused endpoint schedules nothing. After the pause the free places are
// used at once.
func TestPlacesFreedInAPause(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q := workqueue.New(workqueue.Options{Client: b.client, Replica: "r", EndpointLimit: 32, HostLimit: 32, BreakerFailures: testFailures})
	company := companies(testPartition, 1)[0]
	b.overflowed(q, company, 50)
	work := deliveriesOf(b.claim(q))
	b.pauseEndpoint(company, subscriber(company, 0))
	b.record(q.Name(), b.attempted(company, work[0], attempt.ClassNone, store.Reached))
	b.mustBeRight()
	b.resumeEndpoint(company, subscriber(company, 0))
	b.mustBeRight()
	if n := len(deliveriesOf(b.claim(q))); len(work) != 32 || n != 1 {
		t.Errorf("%d were claimed, %d after the pause", len(work), n)
	}
}

// Deliveries of a paused endpoint are not claimed, and their queue is not scheduled.
func TestPausedQueueIsNotServed(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("a"), companies(testPartition, 1)[0]
	sub := subscriber(company, 0)
	b.overflowed(q, company, 1)
	b.pauseEndpoint(company, sub)
	b.accept(company, ids("later", 20)...)
	b.overflowAll(q.Name(), b.claim(q))
	if c := b.claimMost(q, 50); len(c.Batches) > 0 || c.Wake {
		t.Errorf("a claim gave %+v", c)
	}
	if s := b.mustBeRight(); len(s.pairs("due")) > 0 {
		t.Errorf("the due set has %v", s.pairs("due"))
	}
	b.resumeEndpoint(company, sub)
	b.mustBeRight()
	if got := deliveriesOf(b.claim(q)); len(got) != testLimit {
		t.Errorf("%d were claimed after the pause", len(got))
	}
}
