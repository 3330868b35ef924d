package workqueue_test

import (
	"testing"
	"time"
)

// A queue knows which companies were passed by, and until when.
func TestPassedSince(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	q.NotePassed(all[0])
	if !q.PassedSince(all[0], time.Now().Add(-time.Hour)) || q.PassedSince(all[1], time.Now().Add(-time.Hour)) || q.PassedSince(all[0], time.Now().Add(time.Hour)) {
		t.Error("who was passed by, and since when, is not known")
	}
}
