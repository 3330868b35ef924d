package workqueue_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/workqueue"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/redistest"
)

// fixed is a claimer with the same claim for each call.
type fixed struct {
	*workqueue.Queue
	token   string
	number  uint64
	free    int
	started func([]any) // nil: the queue starts the work
}

func (f *fixed) BeginAccept() (number uint64, deliveries int) { return f.number, f.free }

func (f *fixed) AcceptFree(uuid.UUID) (token string, deliveries int) { return f.token, f.free }

func (f *fixed) StartAccepted(token func(uuid.UUID) string, deliveries int, batches []any) {
	if f.started == nil {
		f.Queue.StartAccepted(token, deliveries, batches)
		return
	}
	f.started(batches)
}

// acceptFor stores events that q may claim at once, as the owner of the partition, if it has free places,
// and returns those that it claimed.
func (b *bench) acceptFor(q *workqueue.Queue, free int, company uuid.UUID, ids ...string) (claimed []workqueue.Batch) {
	b.tb.Helper()
	token, number := q.Numbered(b.ctx, testPartition)
	return b.acceptAs(q, token, number, free, company, ids...)
}

// acceptAs is acceptFor under a token and a number.
func (b *bench) acceptAs(q *workqueue.Queue, token string, number uint64, free int, company uuid.UUID, ids ...string) (claimed []workqueue.Batch) {
	b.tb.Helper()
	b.acceptWith(&fixed{Queue: q, token: token, number: number, free: free, started: func(batches []any) {
		claimed = workqueue.Read(batches)
	}}, company, ids...)
	return claimed
}

// acceptWith stores events, and returns when those that were claimed are started.
func (b *bench) acceptWith(c publish.Claimer, company uuid.UUID, ids ...string) {
	b.tb.Helper()
	waiting := b.events
	defer func() { b.events = waiting }()
	b.events = publish.New(publish.Options{Client: b.client, Retention: time.Hour, Claimer: c, Wake: func(context.Context, []int) {}})
	defer b.events.Close()
	b.accept(company, ids...)
}

// New events of a company without other work are claimed by the script that accepts them.
func TestNewEventsAreClaimedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	got := b.acceptFor(q, 10, all[0], "a", "b")
	if len(got) != 1 || got[0].Company != all[0] || !slices.EqualFunc(got[0].Events, []string{"a", "b"}, func(e workqueue.Event, id string) bool {
		return e.ID == id && e.Value != ""
	}) {
		t.Fatalf("claimed %+v", got)
	}
	if more := b.claim(q); len(more) > 0 {
		t.Errorf("claimed again: %+v", more)
	}
	b.mustBeRight()

	b.accept(all[1], "waits")
	if got := b.acceptFor(q, 10, all[1], "c"); len(got) > 0 {
		t.Errorf("claimed %+v before an earlier event of the company", got)
	}
	if got := b.acceptFor(q, 1, all[0], "d", "e"); len(got) > 0 {
		t.Errorf("claimed %+v without places", got)
	}
	b.takeOver(b.queue("s"), q.Name())
	for _, batch := range b.claim(b.queue("s")) {
		if slices.ContainsFunc(batch.Events, func(e workqueue.Event) bool { return e.ID == "a" && e.Known == nil }) {
			t.Errorf("a was taken over as a new event: %+v", batch)
		}
	}
	if got := b.acceptFor(q, 10, all[0], "f"); len(got) > 0 {
		t.Errorf("a replica that is not the owner claimed %+v", got)
	}
	b.mustBeRight()
}

// Events whose claim Redis runs after its recovery wait in the ready queue.
func TestLateAcceptClaimsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	if err := q.Recover(t.Context(), testPartition, 5); err != nil {
		t.Fatal(err)
	}
	if got := b.acceptAs(q, q.Name(), 5, 10, company, "a"); len(got) > 0 {
		t.Errorf("claim 5 took %+v", got)
	}
	if got := b.claim(b.queue("s")); len(got) != 1 {
		t.Errorf("%+v waits in the ready queue", got)
	}
	if got := b.acceptFor(b.queue("t"), 10, company, "b"); len(got) != 1 {
		t.Errorf("another claim took %+v", got)
	}
	b.mustBeRight()
}

// Events are delivered when the answer of the commit that claimed them was lost.
func TestAnswerOfAnAcceptIsLost(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"sent again": 1, "not sent again": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.Options{})
			proxy := redistest.NewProxy(t, server)
			k := &taker{others: 100}
			q := start(t, proxied(t, proxy, retries), k, slowly("r"))
			p := publish.New(publish.Options{
				Client: proxied(t, proxy, retries), Retention: time.Hour, Claimer: q, Wake: func(context.Context, []int) {},
			})
			t.Cleanup(p.Close)
			company := companies(testPartition, 1)[0]
			accept := func(id string) error {
				_, err := p.Accept(t.Context(), []events.Event{{ID: id, CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: time.Now()}})
				return err
			}
			if err := accept("first"); err != nil { // so that Redis knows the script
				t.Fatal(err)
			}
			eventually(t, "the first event is claimed", func() bool { return len(k.events()) == 1 })
			var once sync.Once
			proxy.Follow(func(request [][]string, reply []byte) (pass bool) {
				pass = true
				if reply != nil && slices.Contains(request[0], company.String()) && slices.Contains(request[0], "lost") {
					once.Do(func() { pass = false })
				}
				return pass
			})
			if err := accept("lost"); err != nil && !errors.Is(err, events.ErrUnavailable) {
				t.Fatal(err)
			}
			eventually(t, "the event is claimed", func() bool { return slices.Equal(k.events(), []string{"first", "lost"}) })
			newBench(t, server.Client()).mustBeRight()
		})
	}
}

// A replica that has stopped claims no new events.
func TestStoppedReplicaClaimsNoNewEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{others: 100}
	q := start(t, b.client, k, slowly("r"))
	company := companies(testPartition, 1)[0]
	b.acceptWith(q, company, "a")
	eventually(t, "the event is claimed", func() bool { return len(k.events()) == 1 })
	token, number := q.Token(testPartition), uint64(100)
	q.StopClaiming(t.Context())
	if _, free := q.BeginAccept(); free > 0 {
		t.Errorf("may claim %d", free)
	}
	late := &fixed{Queue: q, token: token, number: number, free: 50} // a commit that began before
	b.acceptWith(late, company, "b")
	if err := q.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.acceptWith(late, company, "c")
	if got := k.events(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%v were started", got)
	}
	var left []string
	for _, batch := range b.claim(b.queue("s")) {
		for _, e := range batch.Events {
			left = append(left, e.ID)
		}
	}
	if slices.Sort(left); !slices.Equal(left, []string{"a", "b", "c"}) {
		t.Errorf("%v are left", left)
	}
	b.mustBeRight()
}

// A replica claims new events of a company up to a quantum. It claims none while it has few places
// left, or has work that waits for places.
func TestPlacesForNewEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	company := companies(testPartition, 1)[0]
	k := &taker{others: 100}
	q := start(t, b.client, k, slowly("r"))
	_, n := q.BeginAccept()
	if token, free := q.AcceptFree(company); n != 50 || free != 50 || token == "" {
		t.Errorf("%d deliveries may be claimed, of a company %d under %q", n, free, token)
	}
	k.set(1)
	if _, n := q.BeginAccept(); n != 0 {
		t.Errorf("%d deliveries may be claimed in the last eighth", n)
	}
	k.set(0)
	q.Wake(context.Background(), []int{testPartition})
	eventually(t, "a partition waits for places", q.Full)
	k.set(100)
	if _, n := q.BeginAccept(); n > 0 {
		t.Error("new events may be claimed before the work that waits")
	}
}
