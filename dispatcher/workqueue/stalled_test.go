package workqueue_test

import (
	"context"
	"testing"
	"time"

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
