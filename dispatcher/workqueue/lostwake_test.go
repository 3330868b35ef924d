package workqueue_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// A wake-up is lost. The partition's owner serves the partition, with the default intervals, and no event
// is claimed twice.
func TestLostWakeUp(t *testing.T) {
	t.Parallel()
	company := companies(testPartition, 1)[0]
	asDaemon := func(o *workqueue.Options) { o.HeartbeatEvery, o.ServiceEvery = 0, 0 }
	for name, lose := range map[string]func(*testing.T, *bench, *taker) (events int){
		"the publisher ends before it enqueues": func(t *testing.T, b *bench, k *taker) int {
			t.Helper()
			start(t, b.client, k, asDaemon)
			b.accept(company, ids("e", 10)...)
			return 10
		},
		"a replica is lost after a claim that set the flag again": func(t *testing.T, b *bench, k *taker) int {
			t.Helper()
			lost := b.queue("lost")
			b.accept(company, ids("e", 300)...)
			b.heartbeat(lost.Name())
			if c := b.claimMost(lost, 100); !c.Wake {
				t.Errorf("the claim answered %+v", c)
			}
			start(t, b.client, k, asDaemon)
			began := time.Now()
			eventually(t, "the events that the lost replica did not claim are claimed", func() bool { return len(k.events()) >= 200 })
			t.Logf("the events that it did not claim were claimed within %s, before its notes", time.Since(began).Round(10*time.Millisecond))
			return 300
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, redisOf(t))
			k := &taker{others: 100}
			n := lose(t, b, k)
			began := time.Now()
			eventually(t, "all events are claimed", func() bool { return len(k.events()) >= n })
			t.Logf("claimed within %s", time.Since(began).Round(10*time.Millisecond))
			all := k.events()
			if len(all) != n || len(slices.Compact(all)) != n {
				t.Errorf("%d events were claimed, of %d", len(all), n)
			}
			b.mustBeRight()
		})
	}
}

// pair starts two replicas that serve partitions only after wake-ups, and returns the second one and a
// partition of the first.
func pair(t *testing.T, b *bench, k *taker) (second *workqueue.Queue, p int) {
	t.Helper()
	first := alone(t, b, "first", k, nil)
	second = alone(t, b, "second", &taker{others: 100}, nil)
	eventually(t, "both replicas own partitions", func() bool { n := len(first.Owned()); return n > 0 && n < partition.Count })
	eventually(t, "all partitions are owned", func() bool { return len(first.Owned())+len(second.Owned()) == partition.Count })
	return second, first.Owned()[0]
}

// A replica wakes the owner of a partition by a message, and by a task in case that the message is lost.
func TestOwnersAreWoken(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, b *bench){
		"the message is lost": func(t *testing.T, b *bench) {
			t.Helper()
			b.client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if cmd.Name() == "publish" {
					return nil
				}
				return next(ctx, cmd)
			}})
		},
		"the task is lost": func(t *testing.T, b *bench) {
			t.Helper()
			if err := b.client.Set(t.Context(), "asynq:{spendhook:first}:paused", 1, 0).Err(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, k := newBench(t, redisOf(t)), &taker{others: 100}
			q, p := pair(t, b, k)
			lose(t, b)
			b.accept(companies(p, 1)[0], "e")
			q.Wake(t.Context(), []int{p})
			eventually(t, "the event is claimed", func() bool { return len(k.events()) == 1 })
		})
	}
}
