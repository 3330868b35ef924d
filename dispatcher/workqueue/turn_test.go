package workqueue_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// Work is begun once when the answer of the call that read it was lost, and when the client has sent the call twice.
func TestTurnIsRepeated(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"the answer is lost": true, "the client sends it twice": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			company := companies(testPartition, 1)[0]
			p := b.start(t, "r")
			p.accept(company, "first")
			eventually(t, "it is begun", func() bool { return len(p.ids()) == 1 })
			var repeated atomic.Int64
			p.client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
				err := next(ctx, cmds)
				answer, _ := cmds[0].(*redis.Cmd)
				switch {
				case err != nil || answer == nil || repeated.Load() == 3 || !begins(answer):
					return err
				case lost:
					for _, cmd := range cmds {
						cmd.SetErr(io.ErrUnexpectedEOF)
					}
					err = io.ErrUnexpectedEOF
				default:
					err = next(ctx, cmds)
				}
				repeated.Add(1)
				return err
			}})
			p.match(event(company, "first"), waits, waits) // two deliveries
			b.accept(company, ids(20)...)
			eventually(t, "all is begun", func() bool { return len(p.has()) == 22 })
			p.settle()
			if got := p.has(); len(got) != 22 || repeated.Load() != 3 {
				t.Errorf("%d are begun after %d repeated calls: %v", len(got), repeated.Load(), got)
			}
		})
	}
}

// A turn that fails since a key of the company is damaged leaves no delivery marked as in flight.
func TestFailedTurnLeavesNoMarks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	p.accept(company, "e")
	eventually(t, "it is begun", func() bool { return len(p.ids()) == 1 })
	b.do("RENAME", "c:"+company.String(), partition.Prefix(testPartition)+"kept")
	b.do("SET", "c:"+company.String(), "?")
	b.do("ZADD", "eq:"+company.String()+"/"+subscriber(company, 0).String(), 1, "e")
	b.do("ZADD", "due", 1, "e:"+company.String()+"/"+subscriber(company, 0).String())
	b.do("SADD", "told", "e:"+company.String()+"/"+subscriber(company, 0).String())
	var failed atomic.Int64
	p.client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		err := next(ctx, cmds)
		if answer, _ := cmds[0].(*redis.Cmd); answer != nil && strings.Contains(answer.String(), "WRONGTYPE") {
			failed.Add(1)
		}
		return err
	}})
	eventually(t, "turns have failed", func() bool { return failed.Load() > 1 })
	if marks := b.keys("ef:"); len(marks) > 0 {
		t.Errorf("marked as in flight: %v", marks)
	}
	b.do("RENAME", "kept", partition.Prefix(testPartition)+"c:"+company.String())
	eventually(t, "the delivery is in flight", func() bool { return len(p.has()) == 2 })
}

// begins reports whether an answer has work of a turn.
func begins(answer *redis.Cmd) bool {
	list, _ := answer.Val().([]any)
	if len(list) == 0 {
		return false
	}
	of, _ := list[0].([]any)
	if len(of) < 6 {
		return false
	}
	events, _ := of[3].([]any)
	endpoints, _ := of[4].([]any)
	return len(events)+len(endpoints) > 0
}

// No more deliveries of an endpoint are in flight than its limit allows. Once one ends, another starts.
func TestEndpointLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	all := ids(10)
	p.accept(company, all...)
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 10 })
	for _, id := range all {
		p.match(event(company, id), waits)
	}
	for left := 10; left > 0; left-- {
		want := min(left, testLimit)
		eventually(t, "as many as the limit allows are in flight", func() bool { return len(p.has()) == want })
		p.settle()
		if got := p.has(); len(got) != want {
			t.Fatalf("%d in flight, %v", len(got), got)
		}
		p.end(p.has()[0], succeeds)
	}
	p.settle()
	if left := b.keys("e[qf]:"); len(left) > 0 || b.do("ZCARD", "due") != int64(0) {
		t.Errorf("after the last one there is %v", left)
	}
}

// Deliveries of an ordered subscriber are attempted one at a time and in the order of their events, after all earlier
// events are matched. One that fails has the later ones wait.
func TestOrderedSubscriber(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	b.setting(company, 0, "ordered", 1)
	all := ids(4)
	p.accept(company, all...)
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 4 })
	for _, n := range []int{3, 1, 2} {
		p.match(event(company, all[n]), waits)
	}
	p.settle()
	if got := p.has(); !slices.Equal(got, []string{event(company, all[0])}) {
		t.Errorf("begun %v before an earlier event is matched", got)
	}
	p.match(event(company, all[0]), waits)
	for _, id := range all {
		for _, o := range []outcome{fails, succeeds} {
			eventually(t, "the next is in flight", func() bool { return slices.Equal(p.has(), []string{of(company, id, 0)}) })
			p.settle()
			if got := p.has(); len(got) != 1 {
				t.Fatalf("in flight: %v", got)
			}
			p.end(of(company, id, 0), o)
		}
	}
	p.settle()
	if got := p.has(); len(got) > 0 {
		t.Errorf("in flight: %v", got)
	}
}

// Deliveries with the same order key are attempted one at a time and in the order of their events, those with others
// meanwhile. One that fails has the later ones of its key wait. One that is begun again waits for an attempt under way.
func TestOrderByKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	all := ids(4)
	for i, key := range []string{"k", "other", "k", "k"} {
		b.orderKeys[of(company, all[i], 0)] = key
	}
	p.accept(company, all...)
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 4 })
	inFlight := func(n ...int) {
		t.Helper()
		var want []string
		for _, i := range n {
			want = append(want, of(company, all[i], 0))
		}
		p.settle()
		eventually(t, fmt.Sprint("in flight are ", n), func() bool { return slices.Equal(p.has(), want) })
	}
	p.match(event(company, all[3]), waits)
	p.match(event(company, all[2]), waits)
	p.match(event(company, all[1]), waits)
	p.settle()
	if got := p.has(); !slices.Equal(got, []string{event(company, all[0])}) {
		t.Errorf("begun %v before an earlier event is matched", got)
	}
	p.match(event(company, all[0]), waits)
	inFlight(0, 1)
	p.end(of(company, all[0], 0), fails)
	inFlight(0, 1)
	p.end(of(company, all[0], 0), succeeds)
	inFlight(1, 2)
	ref := delivery.Ref{Ref: events.Ref{Company: company, ID: all[0]}, Subscriber: subscriber(company, 0)}
	records, err := b.stores.Stored(t.Context(), []delivery.Ref{ref})
	if err != nil || records[0] == nil {
		t.Fatalf("records %v, %v", records, err)
	}
	next := delivery.Restart(*records[0], delivery.ReasonReplay, time.Now())
	again := store.Write{Event: ref.Ref, Changes: []store.Change{{Ref: ref, Base: records[0], Next: &next}}}
	if _, wakes, err := b.stores.Record(t.Context(), time.Now(), []store.Write{again}); err != nil || len(wakes) != 1 {
		t.Fatalf("wakes %v, %v", wakes, err)
	}
	inFlight(1, 2)
	p.end(of(company, all[2], 0), fails)
	inFlight(1, 2)
	p.end(of(company, all[2], 0), succeeds)
	inFlight(0, 1)
	p.end(of(company, all[0], 0), succeeds)
	inFlight(1, 3)
	p.end(of(company, all[1], 0), succeeds)
	p.end(of(company, all[3], 0), succeeds)
	inFlight()
	if left := b.keys("ok:*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A due delivery that waits for an earlier event hides no later ones.
func TestADeliveryThatWaitsForAnEventHidesNoOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	all := ids(4)
	b.orderKeys[of(company, all[3], 0)] = "k"
	p.accept(company, all...)
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 4 })
	b.setting(company, 0, "paused", 1)
	for _, i := range []int{3, 2, 1} {
		p.match(event(company, all[i]), waits)
		p.settle()
	}
	endpoint := company.String() + "/" + subscriber(company, 0).String()
	b.do("HDEL", "es:"+endpoint, "paused")
	b.do("SADD", "told", "e:"+endpoint)
	eventually(t, "the others are begun", func() bool {
		return slices.Equal(p.has(), []string{event(company, all[0]), of(company, all[1], 0), of(company, all[2], 0)})
	})
}

// Nothing of a paused subscriber is attempted until its pause ends.
func TestPausedSubscriber(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	b.setting(company, 0, "paused", 1)
	p.accept(company, "e")
	eventually(t, "it is begun", func() bool { return len(p.ids()) == 1 })
	if task := p.find(event(company, "e")); !slices.Contains(task.waits, subscriber(company, 0)) {
		t.Errorf("the deliveries of %v wait", task.waits)
	}
	p.match(event(company, "e"), waits, waits)
	eventually(t, "the other is in flight", func() bool { return len(p.has()) == 1 })
	p.settle()
	if got := p.has(); !slices.Equal(got, []string{of(company, "e", 1)}) {
		t.Errorf("in flight: %v", got)
	}
	b.do("HDEL", "es:"+company.String()+"/"+subscriber(company, 0).String(), "paused")
	b.do("SADD", "told", "e:"+company.String()+"/"+subscriber(company, 0).String())
	eventually(t, "it is in flight", func() bool { return len(p.has()) == 2 })
}

// The rate of a subscriber holds over a change of the owner.
func TestRateHoldsOverOwners(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	p := b.launch("r")
	b.setting(company, 0, "interval", time.Hour.Milliseconds(), "burst", 2)
	all := ids(4)
	p.accept(company, all...)
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 4 })
	for _, id := range all {
		p.match(event(company, id), waits)
	}
	eventually(t, "the burst is in flight", func() bool { return len(p.has()) == 2 })
	for _, name := range p.has() {
		p.end(name, succeeds)
	}
	p.settle()
	if got := p.has(); len(got) > 0 {
		t.Errorf("in flight beyond the rate: %v", got)
	}
	p.stop()
	next := b.start(t, "next")
	eventually(t, "all partitions are loaded", func() bool { return next.Loaded() == 256 })
	next.settle()
	if got := next.has(); len(got) > 0 {
		t.Errorf("in flight beyond the rate: %v", got)
	}
}

// A damaged key of a company stops no other company. Its own work is begun once the key is mended.
func TestDamagedKeyStopsNoOtherCompany(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"c:", "ei:", "s:", "bl:"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			all := companies(testPartition, 2)
			b.accept(all[0], ids(3)...)
			b.accept(all[1], ids(3)...)
			kept := b.client.Dump(t.Context(), "sh:{7}:"+key+all[0].String()).Val()
			b.do("SET", key+all[0].String(), "damaged")
			b.do("ZADD", "due", 1, "j:"+all[0].String()+"/"+uuid.NewString())
			p := b.start(t, "r")
			eventually(t, "the other company is served", func() bool { return len(p.ids()) == 3 })
			b.do("DEL", key+all[0].String())
			if kept != "" {
				if err := b.client.RestoreReplace(t.Context(), "sh:{7}:"+key+all[0].String(), 0, kept).Err(); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "its own work is begun", func() bool { return len(p.ids()) == 6 && p.jobCount() == 1 })
		})
	}
}

// An event of the index that is not stored, as of a commit that Redis refused in part, holds nothing up.
func TestEventThatIsNotStored(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	b.accept(company, "a")
	last := b.do("HGET", "c:"+company.String(), "at")
	b.do("ZADD", "ei:"+company.String(), last, "refused")
	b.accept(company, "b")
	p := b.start(t, "r")
	eventually(t, "the others are begun", func() bool { return slices.Equal(p.ids(), []string{"a", "b"}) })
	p.match(event(company, "a"))
	p.match(event(company, "b"))
	eventually(t, "the company is done", func() bool { return b.do("SCARD", "active") == int64(0) })
}

// A job runs again after the time that its step has asked for, and once it is told that there is more to do. A job that
// has ended is not due any more.
func TestJobs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	job := subscriber(company, 9)
	entry := "j:" + company.String() + "/" + job.String()
	b.do("ZADD", "due", 1, entry)
	p := b.start(t, "r")
	end := func(again time.Duration) {
		if err := p.EndJob(t.Context(), p.token, company, job, again); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it runs", func() bool { return p.jobCount() == 1 })
	end(time.Millisecond)
	eventually(t, "it runs again", func() bool { return p.jobCount() == 2 })
	b.do("ZADD", "due", "LT", 1, entry)
	b.do("SADD", "told", entry)
	p.settle()
	if p.jobCount() != 2 {
		t.Error("it runs beside itself")
	}
	end(-1)
	eventually(t, "it runs a third time", func() bool { return p.jobCount() == 3 })
	end(-1)
	p.settle()
	if n := b.do("ZCARD", "due"); n != int64(0) || p.jobCount() != 3 {
		t.Errorf("%v entries are due, after %d runs", n, p.jobCount())
	}
}

// A job that has ended before its owner reads that it was told of it holds no other job up.
func TestJobEndsBeforeItsOwnerLooks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	company := companies(testPartition, 1)[0]
	ended, other := "j:"+company.String()+"/"+subscriber(company, 8).String(), "j:"+company.String()+"/"+subscriber(company, 9).String()
	p := b.loaded(t)
	b.do("ZADD", "due", 1, other)
	b.do("SADD", "told", ended, other)
	p.Look()
	eventually(t, "a job runs", func() bool { return p.jobCount() == 1 })
	for range 2 { // that of a job that has ended ends at once
		last := func() uuid.UUID { p.mu.Lock(); defer p.mu.Unlock(); return p.jobs[len(p.jobs)-1] }()
		before := p.jobCount()
		if err := p.EndJob(t.Context(), p.token, company, last, -1); err != nil {
			t.Fatal(err)
		}
		if before == 1 {
			eventually(t, "the other job runs", func() bool { return p.jobCount() == 2 })
		}
	}
}
