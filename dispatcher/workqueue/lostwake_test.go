package workqueue_test

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
)

// What asynq keeps of wake-ups.
const (
	asynqPending = "asynq:{spendhook}:pending"
	asynqActive  = "asynq:{spendhook}:active"
	asynqPaused  = "asynq:{spendhook}:paused"
)

func deleteAsynq(ctx context.Context, client redis.UniversalClient) error {
	keys, err := client.Keys(ctx, "asynq:*").Result()
	if err == nil && len(keys) > 0 {
		err = client.Del(ctx, keys...).Err()
	}
	return err
}

// A wake-up is lost at each step. The partition's owner serves the partition, with the
// default intervals, and no event is claimed twice.
func TestWakeUpIsLostAtEachStep(t *testing.T) {
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
		"the task is deleted": func(t *testing.T, b *bench, k *taker) int {
			t.Helper()
			q := start(t, b.client, k, asDaemon)
			if err := b.client.Set(t.Context(), asynqPaused, 1, 0).Err(); err != nil {
				t.Fatal(err)
			}
			b.accept(company, ids("e", 10)...)
			q.Wake(t.Context(), []int{testPartition})
			eventually(t, "a wake-up is enqueued", func() bool { return b.client.LLen(t.Context(), asynqPending).Val() > 0 })
			if err := deleteAsynq(t.Context(), b.client); err != nil {
				t.Fatal(err)
			}
			return 10
		},
		"all keys are deleted while a task is active": func(t *testing.T, b *bench, k *taker) int {
			t.Helper()
			var deleted atomic.Bool
			q := start(t, b.client, k, func(o *workqueue.Options) {
				asDaemon(o)
				o.Take = func(ctx context.Context, replica string, batches []workqueue.Batch) {
					if !deleted.Load() && b.client.LLen(ctx, asynqActive).Val() > 0 {
						deleted.Store(deleteAsynq(ctx, b.client) == nil)
					}
					k.take(ctx, replica, batches)
				}
			})
			n := 0
			for ; !deleted.Load(); n++ { // until a task is served before the owner serves the partition
				b.accept(company, ids("e"+strconv.Itoa(n), 1000)...)
				q.Wake(t.Context(), []int{testPartition})
				eventually(t, "the events are claimed", func() bool { return deleted.Load() || len(k.events()) == 1000*(n+1) })
			}
			return 1000 * n
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
