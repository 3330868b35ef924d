package workqueue_test

import (
	"testing"
	"time"
)

// A queue knows which companies were skipped, and until when.
func TestSkippedSince(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, all := b.queue("r"), companies(testPartition, 2)
	q.NoteSkipped(all[0])
	if !q.SkippedSince(all[0], time.Now().Add(-time.Hour)) || q.SkippedSince(all[1], time.Now().Add(-time.Hour)) || q.SkippedSince(all[0], time.Now().Add(time.Hour)) {
		t.Error("SkippedSince does not match the noted companies and times")
	}
}
