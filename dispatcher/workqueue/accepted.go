package workqueue

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
)

// BeginAccept returns the number with which one call of the accepting script may claim the events that it
// accepts, and the number of deliveries that it may claim: 0 when this replica is not started, is shutting
// down, or has too few places.
func (q *Queue) BeginAccept() (number uint64, deliveries int) {
	q.mu.Lock()
	off := !q.started || q.ctx.Err() != nil || q.full.Load()
	q.mu.Unlock()
	// Half of a free share, because several calls may see the same places.
	deliveries = q.opts.Admission.Free(uuid.Nil)/2 - int(q.accepted.Load())
	if off || deliveries <= 0 {
		return 0, 0
	}
	return q.calls.Add(1), deliveries
}

// AcceptFree returns the token under which one call of the accepting script may claim events of a
// company, and the number of deliveries: no more than a quantum. The token is "" when this replica may
// claim nothing: it does not own the company's partition, or claims of it are being recovered.
func (q *Queue) AcceptFree(company uuid.UUID) (token string, deliveries int) {
	p := partition.Of(company)
	if token = q.owner.Token(p); token == "" {
		return "", 0
	}
	q.mu.Lock()
	recovering := q.isRecovering(p)
	q.mu.Unlock()
	if deliveries = min(q.opts.Admission.Free(company), claimQuantum); recovering || deliveries <= 0 {
		return "", 0
	}
	return token, deliveries
}

// StartAccepted starts the work of batches that the accepting script returned. token returns the token
// of a company that the script got. deliveries is the approximate number of their deliveries. It does not
// wait. After StopClaiming it does nothing: Release requeues the work.
func (q *Queue) StartAccepted(token func(company uuid.UUID) string, deliveries int, batches []any) {
	var work []Batch
	var partitions []int
	for _, b := range batches {
		read := readBatch(b, "", time.Time{})
		read.Token = token(read.Company)
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
		q.opts.Take(ctx, work)
	})
}

// LostAccepted requeues the events of a company that a call of the accepting script may have claimed
// under a token. The answer of the call was lost. It does not wait.
func (q *Queue) LostAccepted(token string, number uint64, company uuid.UUID) {
	q.claimLost(lostClaim{part{partition.Of(company), token}, number})
}
