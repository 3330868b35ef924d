package workqueue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// BeginAccept returns the id of this replica and a number: under them the script that accepts
// events may claim them. The id is empty while this replica claims nothing.
func (q *Queue) BeginAccept() (replica string, number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.started || q.ctx.Err() != nil || q.refused.Load() != nil {
		return "", 0
	}
	return *q.replica.Load(), q.calls.Add(1)
}

// AcceptFree returns how many deliveries of a company the accepting script may claim: no more
// than a quantum, because the next commit waits for their start, and none while claims of the
// partition are being recovered.
func (q *Queue) AcceptFree(company uuid.UUID) int {
	q.mu.Lock()
	recovering := len(q.lost[partition.Of(company)]) > 0
	q.mu.Unlock()
	if recovering {
		return 0
	}
	return min(q.opts.Admission.Free(company), claimQuantum)
}

// StartAccepted starts the work that the accepting script claimed, and returns when it holds its
// places, so that the next commit sees them. batches are in the form of the script. After
// StopClaiming it does nothing: Release requeues the work.
func (q *Queue) StartAccepted(replica string, batches []any) {
	now := time.Now() //nolint:forbidigo // how old a claim is
	work, partitions := make([]Batch, 0, len(batches)), make([]int, 0, len(batches))
	for _, b := range batches {
		if parts, _ := b.([]any); len(parts) == batchParts {
			work = append(work, readBatch(parts, now))
			partitions = append(partitions, partition.Of(work[len(work)-1].Company))
		}
	}
	q.served(partitions)
	q.mu.Lock()
	stopped := q.ctx.Err() != nil
	if !stopped {
		q.claiming.Add(1)
	}
	q.mu.Unlock()
	if stopped {
		return
	}
	defer q.claiming.Done()
	ctx, cancel := context.WithTimeout(q.asking, claimTimeout)
	defer cancel()
	q.opts.Take(ctx, replica, work)
}

// LostAccepted requeues what the accepting script may have claimed in partitions under a number
// of BeginAccept, since its answer was lost. It does not wait.
func (q *Queue) LostAccepted(replica string, number uint64, partitions []int) {
	for _, p := range partitions {
		q.recoverClaim(p, replica, number)
	}
}
