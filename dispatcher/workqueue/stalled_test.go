package workqueue_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/internal/partition"
	"spendhook/internal/pause"
)

// A claim whose recovery always fails, however often its partition is to be served, does not delay
// the recovery of others.
func TestFailingRecoveryDelaysNoOther(t *testing.T) {
	t.Parallel()
	const failing = testPartition + 1
	b := newBench(t, redisOf(t))
	k := &taker{} // has no places: the replica claims nothing by itself
	q := start(t, b.client, k, nil)
	b.accept(companies(testPartition, 1)[0], "e")
	number := q.Number()
	if claimed := q.ClaimAs(t.Context(), q.Token(testPartition), testPartition, number); len(claimed.Batches) != 1 {
		t.Fatalf("claimed %+v", claimed)
	}
	if err := b.client.Set(t.Context(), partition.Prefix(failing)+"n:"+q.Token(failing), "damaged", 0).Err(); err != nil {
		t.Fatal(err)
	}
	k.set(100)
	q.Freed()
	q.Lose(failing, number)
	q.Lose(testPartition, number)
	for range 100 {
		q.Wake(context.Background(), []int{failing})
		pause.For(t.Context(), 20*time.Millisecond)
	}
	if n := len(k.events()); n != 1 {
		t.Errorf("%d events were claimed again", n)
	}
}

// Work that is claimed and put back again and again is overdue, although it is in no queue meanwhile. Work that
// is put back after a pause is not.
func TestWorkThatIsPutBackAgainAndAgainIsOverdue(t *testing.T) {
	t.Parallel()
	company := companies(testPartition, 1)[0]
	for name, putBack := range map[string]func(*bench, *workqueue.Queue){
		"an event that is not started": func(b *bench, q *workqueue.Queue) {
			if b.do("EXISTS", "pending") == int64(0) {
				b.accept(company, "e")
			}
			for _, batch := range b.claim(q) {
				if err := q.Requeue(t.Context(), batch); err != nil {
					t.Fatal(err)
				}
			}
		},
		"a delivery that is not attempted": func(b *bench, q *workqueue.Queue) {
			if b.do("EXISTS", "pending") == int64(0) {
				b.overflowed(q, company, 1)
			}
			b.record(q.Name(), b.attempted(company, b.claimOne(q), attempt.ClassAborted, store.ReachUnknown))
		},
	} {
		b := newBench(t, redisOf(t))
		q := b.queue("r")
		overdue := func() time.Duration {
			b.claim(q) // nothing waits while it is measured
			total, err := backlog.New(b.client, 0, nil).Measure(t.Context(), []int{testPartition}, 0)
			if err != nil {
				t.Fatal(err)
			}
			b.takeOver(q, q.Name())
			q.Rename()
			return total.OldestDue
		}
		putBack(b, q)
		if got := overdue(); got > time.Minute {
			t.Errorf("%s, once: overdue for %v", name, got)
		}
		for _, c := range []struct {
			what            string
			since, last     time.Duration // before now
			atLeast, atMost time.Duration
		}{
			{"again and again", 2 * time.Minute, time.Second, 2 * time.Minute, 3 * time.Minute},
			{"after a pause", 2 * time.Minute, time.Minute, 0, time.Minute},
		} {
			now := time.Now()
			b.do("HSET", "back", company.String(), fmt.Sprint(now.Add(-c.since).UnixMilli(), " ", now.Add(-c.last).UnixMilli()))
			putBack(b, q)
			if got := overdue(); got < c.atLeast || got > c.atMost {
				t.Errorf("%s, %s: overdue for %v", name, c.what, got)
			}
		}
		b.mustBeRight()
	}
}
