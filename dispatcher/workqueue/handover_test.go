package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// setting tells the owner how an endpoint is served.
func (b *bench) setting(company uuid.UUID, n int, fields ...any) {
	b.tb.Helper()
	e := company.String() + "/" + subscriber(company, n).String()
	b.do("HSET", "es:"+e, fields...)
	b.do("SADD", "bl:"+company.String(), subscriber(company, n).String())
	b.do("SADD", "told", "e:"+e)
}

func event(company uuid.UUID, id string) string { return company.String() + "/" + id }

func of(company uuid.UUID, id string, n int) string {
	return event(company, id) + "/" + subscriber(company, n).String()
}

// A new run of a process that was killed begins again what the former one had begun and not finished: unmatched events,
// without the subscribers that have a delivery, and deliveries in flight. It begins nothing else again.
func TestRestartAfterAKill(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	former := b.launch("r")
	former.accept(company, "matched", "open", "waiting")
	eventually(t, "all are begun", func() bool { return len(former.ids()) == 3 })
	former.match(event(company, "matched"), succeeds, succeeds)
	former.match(event(company, "waiting"), waits, succeeds)
	eventually(t, "the delivery is in flight", func() bool { return slices.Contains(former.has(), of(company, "waiting", 0)) })
	former.kill()

	next := b.start(t, "r")
	eventually(t, "what was open is begun again", func() bool { return len(next.has()) == 2 })
	next.settle()
	if got, want := next.has(), []string{event(company, "open"), of(company, "waiting", 0)}; !slices.Equal(got, want) {
		t.Errorf("begun again: %v, want %v", got, want)
	}
}

// What a replica that stops has begun is its own until it has finished it: the next owner begins everything else. What is
// left when the replica ends, the next owner begins.
func TestHandOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.launch("leaves")
	p.accept(company, "a", "b", "c")
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 3 })
	p.match(event(company, "a"), waits, waits)
	eventually(t, "the deliveries are in flight", func() bool { return len(p.has()) == 4 })
	p.Leave(t.Context())

	next := b.start(t, "next")
	eventually(t, "the next replica owns all", func() bool { return next.Loaded() == partition.Count })
	next.accept(company, "d")
	eventually(t, "it begins what is new", func() bool { return slices.Equal(next.has(), []string{event(company, "d")}) })
	p.match(event(company, "b"), waits)
	eventually(t, "it attempts what waits since then", func() bool { return slices.Contains(next.has(), of(company, "b", 0)) })
	p.end(of(company, "a", 0), fails)
	eventually(t, "it repeats what has failed", func() bool { return slices.Contains(next.has(), of(company, "a", 0)) })
	next.settle()
	if got, want := next.has(), []string{of(company, "a", 0), of(company, "b", 0), event(company, "d")}; !slices.Equal(got, want) {
		t.Errorf("begun %v, want %v", got, want)
	}
	if err := p.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = p.client.Close()
	eventually(t, "it begins what is left", func() bool {
		return slices.Contains(next.has(), event(company, "c")) && slices.Contains(next.has(), of(company, "a", 1))
	})
	next.settle()
	if got := next.has(); len(got) != 5 {
		t.Errorf("begun %v", got)
	}
}

// A replica that gives its partitions away twice hands nothing over twice: the third owner knows what the first one
// still works on.
func TestHandOverOfAHandOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	first := b.launch("first")
	first.accept(company, "a")
	eventually(t, "it is begun", func() bool { return len(first.ids()) == 1 })
	first.Leave(t.Context())
	second := b.launch("second")
	eventually(t, "the second replica owns all", func() bool { return second.Loaded() == partition.Count })
	second.accept(company, "b")
	eventually(t, "it is begun", func() bool { return slices.Equal(second.ids(), []string{"b"}) })
	second.Leave(t.Context())
	third := b.start(t, "third")
	eventually(t, "the third replica owns all", func() bool { return third.Loaded() == partition.Count })
	third.accept(company, "c")
	eventually(t, "it is begun", func() bool { return len(third.ids()) > 0 })
	third.settle()
	if got := third.ids(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("begun %v", got)
	}
	second.match(event(company, "b"), succeeds)
	first.kill()
	second.stop()
	eventually(t, "the third replica begins what the first one has left", func() bool {
		return slices.Contains(third.has(), event(company, "a"))
	})
	third.settle()
	if got := third.has(); !slices.Equal(got, []string{event(company, "a"), event(company, "c")}) {
		t.Errorf("begun %v", got)
	}
}

// What a lost replica had begun is begun by another one, its events as suspects. What a live one has begun is not.
func TestLostReplica(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	lost := b.launch("lost")
	lost.accept(company, ids(40)...)
	eventually(t, "all are begun", func() bool { return len(lost.ids()) == 40 })
	lost.kill()
	often := func(o *workqueue.Options) { o.HeartbeatEvery = 50 * time.Millisecond }
	one, two := b.start(t, "one", often), b.start(t, "two", often)
	eventually(t, "all are begun again", func() bool { return len(one.ids())+len(two.ids()) == 40 })
	one.settle()
	two.settle()
	for _, p := range []*process{one, two} {
		for _, task := range p.tasks {
			if !task.suspect {
				t.Errorf("%s is no suspect", task)
			}
		}
	}
	if got := append(one.ids(), two.ids()...); len(got) != 40 {
		t.Errorf("%d are begun", len(got))
	}
}

// The events of a replica that stops are no suspects.
func TestStopMakesNoSuspects(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.launch("r")
	p.accept(company, "e")
	eventually(t, "it is begun", func() bool { return len(p.ids()) == 1 })
	p.stop()
	next := b.start(t, "next")
	eventually(t, "it is begun again", func() bool { return len(next.ids()) == 1 })
	if next.find(event(company, "e")).suspect {
		t.Error("the event is a suspect")
	}
}

// An ordered subscriber of a lost owner waits until an attempt of that owner has ended.
func TestOrderedWaitsForTheAttemptOfALostReplica(t *testing.T) {
	t.Parallel()
	testOrderAfterALoss(t, func(b *bench, company uuid.UUID) { b.setting(company, 0, "ordered", 1) })
}

// So does a delivery with an order key.
func TestOrderKeyWaitsForTheAttemptOfALostReplica(t *testing.T) {
	t.Parallel()
	testOrderAfterALoss(t, func(b *bench, company uuid.UUID) { b.orderKeys[of(company, "a", 0)] = "k" })
}

// They keep back no delivery with another key, although they are first in the retry set, and the endpoint is loaded slowly.
func TestOrderKeysOfALostReplicaKeepBackNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	lost := b.launch("r")
	for _, id := range []string{"a", "b", "c", "d"} {
		b.orderKeys[of(company, id, 0)] = id
	}
	lost.accept(company, "a", "b", "c")
	eventually(t, "they are begun", func() bool { return len(lost.ids()) == 3 })
	for _, id := range []string{"a", "b", "c"} {
		lost.match(event(company, id), waits)
	}
	eventually(t, "all are in flight", func() bool { return len(lost.has()) == 3 })
	lost.kill()
	next := b.start(t, "r", func(o *workqueue.Options) { o.AttemptTimeout = 10 * soon })
	next.mu.Lock()
	next.limit = 1
	next.mu.Unlock()
	next.accept(company, "d")
	eventually(t, "the event is begun", func() bool { return len(next.ids()) == 1 })
	next.match(event(company, "d"), waits)
	eventually(t, "it is in flight", func() bool { return slices.Equal(next.has(), []string{of(company, "d", 0)}) })
}

func testOrderAfterALoss(t *testing.T, order func(*bench, uuid.UUID)) {
	t.Helper()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	lost := b.launch("r")
	order(b, company)
	lost.accept(company, "a")
	eventually(t, "it is begun", func() bool { return len(lost.ids()) == 1 })
	lost.match(event(company, "a"), waits, waits)
	eventually(t, "both are in flight", func() bool { return len(lost.has()) == 2 })
	lost.kill()
	next := b.start(t, "r", func(o *workqueue.Options) { o.AttemptTimeout = soon })
	eventually(t, "the other is begun again", func() bool { return len(next.has()) == 1 })
	next.settle()
	if got := next.has(); !slices.Equal(got, []string{of(company, "a", 1)}) {
		t.Errorf("begun %v", got)
	}
}

// A late outcome of a former owner ends a delivery while the next owner attempts it again. The next one of its order key
// begins once that attempt has ended.
func TestOrderKeyAfterALateOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	former := b.launch("r")
	former.accept(company, "a", "b")
	eventually(t, "they are begun", func() bool { return len(former.ids()) == 2 })
	for _, id := range []string{"a", "b"} {
		b.orderKeys[of(company, id, 0)] = "k"
		former.match(event(company, id), waits)
	}
	eventually(t, "it is in flight", func() bool { return len(former.has()) == 1 })
	late := former.find(of(company, "a", 0))
	former.kill()
	next := b.start(t, "r")
	again := []string{of(company, "a", 0)}
	eventually(t, "it is in flight again", func() bool { return slices.Equal(next.has(), again) })
	next.mu.Lock()
	next.tasks = append(next.tasks, late) // the outcome comes as if of a replica that was suspended
	next.mu.Unlock()
	next.write(late, []uuid.UUID{late.sub}, []outcome{succeeds})
	next.settle()
	if got := next.has(); !slices.Equal(got, again) {
		t.Errorf("in flight: %v", got)
	}
	next.end(again[0], succeeds)
	eventually(t, "the next one is in flight", func() bool { return slices.Equal(next.has(), []string{of(company, "b", 0)}) })
}

// A late outcome of a former owner ends no attempt of the next one.
func TestLateOutcomeOfAFormerOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	former := b.launch("r")
	former.accept(company, "a")
	eventually(t, "it is begun", func() bool { return len(former.ids()) == 1 })
	former.match(event(company, "a"), waits)
	eventually(t, "it is in flight", func() bool { return len(former.has()) == 1 })
	late := former.find(of(company, "a", 0))
	former.kill()
	next := b.start(t, "r")
	eventually(t, "it is in flight again", func() bool { return len(next.has()) == 1 })
	next.mu.Lock()
	next.tasks = append(next.tasks, late) // the outcome comes as if of a replica that was suspended
	next.mu.Unlock()
	next.write(late, []uuid.UUID{late.sub}, []outcome{fails})
	mark := b.client.HGet(t.Context(), fmt.Sprintf("%sef:%s/%s", partition.Prefix(testPartition), company, late.sub), "a").Val()
	if mark == "" {
		t.Error("the attempt of the next owner does not count as under way")
	}
	next.settle()
	if got := next.has(); !slices.Equal(got, []string{of(company, "a", 0)}) {
		t.Errorf("in flight: %v", got)
	}
}

// A former owner requeues a delivery and does not get the answer, so it requeues it once more: the other delivery stays its
// own, and the next owner begins the requeued one.
func TestARepeatedRequeueCountsOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.launch("leaves")
	p.accept(company, "a")
	eventually(t, "it is begun", func() bool { return len(p.ids()) == 1 })
	p.match(event(company, "a"), waits, waits)
	eventually(t, "the deliveries are in flight", func() bool { return len(p.has()) == 2 })
	p.Leave(t.Context())
	next := b.start(t, "next")
	eventually(t, "the next replica owns all", func() bool { return next.Loaded() == partition.Count })

	endpoint, lost := subscriber(company, 0).String(), map[string]bool{}
	lose := func(cmd redis.Cmder, err error) error {
		if (err != nil && !errors.Is(err, redis.Nil)) || !strings.Contains(fmt.Sprint(cmd.Args()...), endpoint) || lost[cmd.Name()] {
			return err
		}
		lost[cmd.Name()] = true
		cmd.SetErr(errCut)
		return errCut
	}
	p.client.AddHook(redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, following redis.ProcessHook) error {
			return lose(cmd, following(ctx, cmd))
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, following redis.ProcessPipelineHook) error {
			err := following(ctx, cmds)
			for _, cmd := range cmds {
				err = lose(cmd, err)
			}
			return err
		},
	})
	requeued := p.find(of(company, "a", 0))
	p.remove(requeued)
	for p.Requeue(t.Context(), requeued.batch()) != nil {
		if len(lost) > 3 {
			t.Fatal("it fails again and again")
		}
	}
	if len(lost) == 0 {
		t.Error("no answer was lost")
	}
	eventually(t, "the next owner begins it", func() bool { return slices.Contains(next.has(), of(company, "a", 0)) })
	next.settle()
	if slices.Contains(next.has(), of(company, "a", 1)) || b.client.SCard(t.Context(), partition.Prefix(testPartition)+"handover").Val() != 1 {
		t.Error("the former owner has lost the other delivery")
	}
	p.end(of(company, "a", 1), succeeds)
	p.stop()
}
