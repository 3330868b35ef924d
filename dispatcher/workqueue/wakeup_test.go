package workqueue_test

import (
	"context"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// pair starts two replicas that look only when they are woken, and returns them and a partition of the first.
func pair(t *testing.T, b *bench) (first, second *process, p int) {
	t.Helper()
	first, second = b.start(t, "first", seldom), b.start(t, "second", seldom)
	eventually(t, "all partitions are owned and loaded", func() bool {
		n := len(first.Owned())
		return n > 0 && n < partition.Count && first.Loaded() == n && second.Loaded() == partition.Count-n
	})
	return first, second, first.Owned()[0]
}

// A replica wakes the owner of a partition by a message, and by a task in case that the message is lost.
func TestOwnersAreWoken(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, b *bench, second *process){
		"the message is lost": func(t *testing.T, _ *bench, second *process) {
			t.Helper()
			second.client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if cmd.Name() == "publish" {
					return nil
				}
				return next(ctx, cmd)
			}})
		},
		"the task is lost": func(t *testing.T, b *bench, _ *process) {
			t.Helper()
			if err := b.client.Set(t.Context(), "asynq:{spendhook:first}:paused", 1, 0).Err(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			first, second, p := pair(t, b)
			lose(t, b, second)
			second.accept(companies(p, 1)[0], "e")
			eventually(t, "the event is begun", func() bool { return slices.Equal(first.ids(), []string{"e"}) })
		})
	}
}

// Owners that are to be woken while a wake-up is being sent share the next ones.
func TestWakeUpsAreSentTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, second, p := pair(t, b)
	second.AwaitWakeups()
	before := second.Wakeups()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	second.client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "publish" {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-release
		}
		return next(ctx, cmd)
	}})
	second.Wake(t.Context(), []int{p})
	<-entered
	for range 64 {
		second.Wake(t.Context(), []int{p})
	}
	close(release)
	second.AwaitWakeups()
	if n := second.Wakeups() - before; n != 2 {
		t.Errorf("%v wake-ups were sent", n)
	}
}

// A replica that cannot read the stored format of one partition leaves all partitions to others.
func TestRefusedReplicaLeavesItsPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.start(t, "r")
	eventually(t, "all partitions are loaded", func() bool { return p.Loaded() == partition.Count })
	b.do("SET", "format", partition.NewestFormat()+1)
	b.do("SADD", "told", "c:"+companies(testPartition, 1)[0].String())
	b.do("HSET", "c:"+companies(testPartition, 1)[0].String(), "at", 5)
	eventually(t, "the replica leaves", func() bool { return len(p.Owned()) == 0 && p.Refused() != nil })
	eventually(t, "another partition is given away", func() bool {
		return b.client.Exists(t.Context(), partition.Prefix(testPartition+1)+"owner").Val() == 0
	})
}
