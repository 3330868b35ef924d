package cardjobs

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"spendhook/storage"
)

const (
	// itemTimeout bounds one item. It is less than the default RecoverAfter.
	itemTimeout = 10 * time.Second
	// createRetry is the first wait when the database is away.
	createRetry = 100 * time.Millisecond
)

// handle is the work of one task. It reports whether the queue must keep the
// task, which is only when it was interrupted by Stop: an item that failed for
// another reason is still PENDING, and the recovery hands it out again.
func (r *Runner) handle(ctx context.Context, job uuid.UUID, index int) (keep bool) {
	r.working.Add(1)
	defer r.working.Done()
	ctx, cancel := context.WithTimeout(ctx, itemTimeout)
	defer cancel()
	err := r.finish(ctx, job, index)
	if err == nil {
		return false
	}
	if r.isStopping() {
		return true
	}
	r.opts.Logger.Warn("card item not done", "job_uuid", job, "index", index, "error", err)
	return false
}

func (r *Runner) isStopping() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// finish creates the item's card, or finds why not, and tells of it. An outcome
// that cannot be told now stays in the outbox.
func (r *Runner) finish(ctx context.Context, job uuid.UUID, index int) error {
	start := r.opts.Now()
	item, err := r.create(ctx, job, index)
	if err != nil {
		return err
	}
	if err := r.publish(ctx, item); err != nil {
		r.opts.Logger.Debug("card outcome left in the outbox", "request_uuid", item.RequestUUID, "error", err)
	}
	r.metrics.itemSeconds.Observe(r.opts.Now().Sub(start).Seconds())
	return nil
}

// create tries for as long as ctx allows while the database is away: no other
// item could do better in this worker, and the queue does not run empty through
// tries that are bound to fail.
func (r *Runner) create(ctx context.Context, job uuid.UUID, index int) (storage.CardItem, error) {
	for try := 0; ; try++ {
		item, err := r.opts.Store.CreateCardForItem(ctx, job, index, r.opts.Now())
		if !errors.Is(err, storage.ErrUnavailable) || !r.pause(ctx, backoff(createRetry, try)) {
			return item, err
		}
	}
}
