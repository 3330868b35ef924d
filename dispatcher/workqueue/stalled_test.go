package workqueue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
)

// counting is an admission that counts its calls: each round of claims makes at least one.
type counting struct {
	*taker
	calls atomic.Int64
}

func (c *counting) Holding() (map[uuid.UUID]int, int) {
	c.calls.Add(1)
	return c.taker.Holding()
}

// calledIn returns the number of calls during a time.
func (c *counting) calledIn(d time.Duration) int64 {
	before := c.calls.Load()
	pause.For(context.Background(), d)
	return c.calls.Load() - before
}

// While a shard has no heartbeat of a replica, wake-ups for its partitions cause no rounds, however
// many come. Once it has one, the partitions are served.
func TestWakeUpsWithoutAHeartbeatCauseNoRounds(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{others: 100}
	c := &counting{taker: k}
	q := start(t, b.client, k, func(o *workqueue.Options) { o.Admission = c })
	b.accept(companies(testPartition, 1)[0], "e")
	eventually(t, "all is served", func() bool { return len(k.events()) == 1 })
	if err := b.client.Set(t.Context(), workqueue.ReplicasKey(), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	q.Rename()
	for range 50 {
		q.Kick(testPartition)
		pause.For(t.Context(), 2*time.Millisecond)
	}
	if n := c.calledIn(time.Second); n > 10 {
		t.Errorf("%d rounds were made in a second", n)
	}
	b.accept(companies(testPartition, 1)[0], "f")
	q.Kick(testPartition)
	if err := b.client.Del(t.Context(), workqueue.ReplicasKey()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the partition is served", func() bool { return len(k.events()) == 2 })
}

// A claim whose recovery always fails, however often its partition is to be served, does not delay
// the recovery of others.
func TestFailingRecoveryDelaysNoOther(t *testing.T) {
	t.Parallel()
	const failing = testPartition + 1
	b := newBench(t, redisOf(t))
	k := &taker{} // has no places: the replica claims nothing by itself
	q := start(t, b.client, k, nil)
	b.accept(companies(testPartition, 1)[0], "e")
	_, number := q.Numbered()
	if claimed := q.Repeat(t.Context(), testPartition, number); len(claimed.Batches) != 1 {
		t.Fatalf("claimed %+v", claimed)
	}
	if err := b.client.Set(t.Context(), partition.Prefix(failing)+"n:"+q.Name(), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	k.set(100)
	q.Freed()
	q.Lose(failing, number)
	q.Lose(testPartition, number)
	for range 100 {
		q.Kick(failing)
		pause.For(t.Context(), 20*time.Millisecond)
	}
	if n := len(k.events()); n != 1 {
		t.Errorf("%d events were claimed again", n)
	}
}

// The owner of a partition does not enqueue wake-ups while it has no places and there is no other
// replica: nobody would take them.
func TestFullReplicaAloneEnqueuesNoWakeUps(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{}
	q := start(t, b.client, k, nil)
	b.accept(companies(testPartition, 1)[0], "e")
	pause.For(t.Context(), 1500*time.Millisecond) // the owner serves the partition twice
	if n := q.Wakeups(); n > 0 {
		t.Errorf("%v wake-ups were enqueued", n)
	}
	k.set(100)
	q.Freed()
	eventually(t, "the event is claimed", func() bool { return len(k.events()) == 1 })
}
