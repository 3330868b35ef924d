package workqueue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// BeginAccept returns the replica id and the call number with which one call of the accepting script may
// claim the events that it accepts, and the number of deliveries that it may claim. The id is empty when
// this replica may claim nothing: it is not started, is shutting down, cannot read the stored format, or
// has too few places.
func (q *Queue) BeginAccept() (replica string, number uint64, deliveries int) {
	q.mu.Lock()
	off := !q.started || q.ctx.Err() != nil || q.refused.Load() != nil || q.full.Load()
	q.mu.Unlock()
	// Half of a free share, because several calls may see the same places.
	deliveries = q.opts.Admission.Free(uuid.Nil)/2 - int(q.accepted.Load())
	if off || deliveries <= 0 {
		return "", 0, 0
	}
	return *q.replica.Load(), q.calls.Add(1), deliveries
}

// AcceptFree returns how many deliveries of a company one call of the accepting script may
// claim: no more than a quantum, and none while claims of the partition are being recovered, or
// before its shard has a heartbeat under the id of this replica.
func (q *Queue) AcceptFree(company uuid.UUID) int {
	p := partition.Of(company)
	address, err := partition.Shard(q.ctx, q.opts.Client, p)
	q.mu.Lock()
	off := err != nil || !q.isAnnounced(q.shards[address]) || q.isRecovering(p)
	q.mu.Unlock()
	if off {
		return 0
	}
	return min(q.opts.Admission.Free(company), claimQuantum)
}

// StartAccepted starts the work of batches that the accepting script returned. deliveries is their
// approximate number of deliveries. It does not wait. After StopClaiming it does nothing: Release requeues
// the work.
func (q *Queue) StartAccepted(replica string, deliveries int, batches []any) {
	var work []Batch
	var partitions []int
	for _, b := range batches {
		read := readBatch(b, time.Time{})
		work, partitions = append(work, read), append(partitions, partition.Of(read.Company))
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(work) == 0 || q.ctx.Err() != nil {
		return
	}
	q.served(partitions)
	q.accepted.Add(int64(deliveries))
	q.claiming.Go(func() {
		defer q.accepted.Add(-int64(deliveries))
		ctx, cancel := context.WithTimeout(q.claimCtx, claimTimeout)
		defer cancel()
		q.opts.Take(ctx, replica, work)
	})
}

// LostAccepted requeues the events of partitions that a call of the accepting script may have
// claimed. The answer of the call was lost. It does not wait.
func (q *Queue) LostAccepted(replica string, number uint64, partitions []int) {
	for _, p := range partitions {
		q.claimLost(lostClaim{p, replica, number})
	}
}
