package workqueue_test

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/redistest"
)

// seldom keeps a process from looking by itself.
func seldom(o *workqueue.Options) { o.LookEvery = time.Hour }

// loaded starts a process that has loaded all partitions, and looks only when it is woken.
func (b *bench) loaded(t *testing.T) *process {
	t.Helper()
	p := b.start(t, "r", seldom)
	eventually(t, "all partitions are loaded", func() bool { return p.Loaded() == 256 })
	return p
}

// The owner begins events that it accepts without another call of Redis, those of one array in order.
func TestAcceptedEventsBeginAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, all := b.loaded(t), companies(testPartition, 2)
	p.accept(all[0], "a", "b")
	eventually(t, "the first are begun", func() bool { return len(p.ids()) == 2 })
	p.accept(all[1], "c")
	p.accept(all[0], "d")
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 4 })
	if got := slices.DeleteFunc(p.ids(), func(id string) bool { return id == "c" }); !slices.Equal(got, []string{"a", "b", "d"}) {
		t.Errorf("begun in the order %v", got)
	}
	if told := b.keys("told"); len(told) > 0 {
		t.Error("the owner was told of its own events")
	}
	for _, name := range p.has() {
		p.match(name)
	}
	p.settle()
	if active := b.keys("active"); len(active) > 0 {
		t.Errorf("companies without open events are active: %v", b.do("SMEMBERS", "active"))
	}
}

// The owner begins events that another replica has accepted, once each, also when every message is lost.
func TestOwnerIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, company := b.start(t, "r"), companies(testPartition, 1)[0]
	b.accept(company, ids(700)...)
	p.accept(company, "last")
	eventually(t, "all are begun", func() bool { return len(p.ids()) == 701 })
	if want := append(ids(700), "last"); !slices.Equal(p.ids(), want) {
		t.Errorf("begun in the order %v", p.ids())
	}
}

// Events whose answer was lost are begun once: by the commit that is sent again, or because the owner reads the log.
func TestAnswerOfAnAcceptIsLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, company := b.start(t, "r"), companies(testPartition, 1)[0]
	p.settle()
	var lost atomic.Bool
	p.client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		err := next(ctx, cmds)
		if strings.Contains(cmds[0].String(), " lost") && lost.CompareAndSwap(false, true) {
			for _, cmd := range cmds {
				cmd.SetErr(io.ErrUnexpectedEOF)
			}
			return io.ErrUnexpectedEOF
		}
		return err
	}})
	if _, err := p.events.Accept(t.Context(), eventsOf(company, "lost")); err == nil {
		t.Fatal("the answer was not lost")
	}
	p.accept(company, "next")
	eventually(t, "both are begun", func() bool { return slices.Equal(p.ids(), []string{"lost", "next"}) })
	p.accept(company, "lost", "third")
	p.settle()
	if got := p.ids(); !slices.Equal(got, []string{"lost", "next", "third"}) {
		t.Errorf("begun %v", got)
	}
}

// A process that has stopped begins nothing that it accepts. The next owner does.
func TestStoppedReplicaBeginsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, company := b.loaded(t), companies(testPartition, 1)[0]
	p.Leave(t.Context())
	p.accept(company, "e")
	p.settle()
	if got := p.has(); len(got) > 0 {
		t.Errorf("begun %v", got)
	}
	next := b.start(t, "next")
	eventually(t, "the next owner begins the event", func() bool { return slices.Equal(next.ids(), []string{"e"}) })
}

// Events for which there are no places wait in the log, and are begun once there are places.
func TestEventsWaitForPlaces(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, company := b.loaded(t), companies(testPartition, 1)[0]
	p.allow(0)
	p.accept(company, ids(30)...)
	eventually(t, "the replica is full", p.Full)
	p.accept(company, "late")
	if got := p.has(); len(got) > 0 {
		t.Errorf("begun %v", got)
	}
	p.allow(100)
	p.accept(company, "last")
	eventually(t, "all are begun", func() bool { return len(p.ids()) >= 32 })
	if got, want := slices.Sorted(slices.Values(p.ids())), append(ids(30), "last", "late"); !slices.Equal(got, want) {
		t.Errorf("begun %v", got)
	}
}
