package cardjobs

import (
	"context"
	"time"

	"spendhook/internal/pause"
)

const (
	// itemTimeout bounds one item.
	itemTimeout = 10 * time.Second
	// itemRetry is a worker's first wait after a failed item.
	itemRetry = 100 * time.Millisecond
)

// work processes one item after the other until intake ends. It waits while there is no item.
func (r *Runner) work(intake, ctx context.Context) {
	for failures := 0; intake.Err() == nil; {
		found, err := r.next(ctx)
		switch {
		case err == nil:
			failures = 0
			if !found {
				r.idle(intake)
			}
		case intake.Err() == nil:
			failures++
			r.metrics.failures.Inc()
			r.opts.Logger.Warn("card item failed", "exception.message", err)
			pause.For(intake, backoff(itemRetry, failures))
		}
	}
}

// idle waits until there may be items.
func (r *Runner) idle(intake context.Context) {
	select {
	case <-r.wake:
	case <-intake.Done():
	}
}

// wakeOne wakes one idle worker, now or when the next worker becomes idle.
func (r *Runner) wakeOne() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next creates the card of the next item, or stores why it cannot be created, and publishes the
// outcome. An outcome that cannot be published now stays in the outbox. It wakes another
// worker, because there may be more items.
func (r *Runner) next(ctx context.Context) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, itemTimeout)
	defer cancel()
	start := r.opts.Now()
	item, found, err := r.opts.Store.CreateNextCard(ctx, start)
	if err != nil || !found {
		return found, err
	}
	r.wakeOne()
	if err := r.publish(ctx, item); err != nil {
		r.opts.Logger.Debug("card outcome left in the outbox", "request_uuid", item.RequestUUID, "exception.message", err)
	}
	r.metrics.itemSeconds.Observe(r.opts.Now().Sub(start).Seconds())
	return true, nil
}

// look counts the pending items and wakes a worker if there are any: they may come from another
// replica, from a lost one, or be due again after a failure. Then it ends finished jobs, and
// counts the jobs that it ended.
func (r *Runner) look(ctx context.Context) error {
	n, err := r.opts.Store.PendingItems(ctx)
	if err != nil {
		return err
	}
	r.metrics.unfinished.Store(int64(n))
	if n > 0 {
		r.wakeOne()
	}
	for {
		jobs, err := r.opts.Store.EndJobs(ctx)
		if err != nil || len(jobs) == 0 {
			return err
		}
		for _, job := range jobs {
			r.metrics.completed(job)
		}
	}
}
