package cardjobs

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/internal/pause"
)

const (
	// itemTimeout bounds one item.
	itemTimeout = 10 * time.Second
	// itemRetry is a worker's pause after a failed item.
	itemRetry = 2 * time.Second
)

// work processes one item after the other until intake ends. Without an item it waits for a wake-up.
func (r *Runner) work(intake, ctx context.Context) {
	for intake.Err() == nil {
		found, err := r.next(ctx)
		switch {
		case err == nil && !found:
			select {
			case <-r.wake:
			case <-intake.Done():
			}
		case err != nil && intake.Err() == nil:
			r.metrics.failures.Inc()
			r.opts.Logger.Warn("card item failed", "exception.message", err)
			pause.For(intake, itemRetry)
		}
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
	timer := prometheus.NewTimer(r.metrics.itemSeconds)
	item, found, err := r.opts.Store.CreateNextCard(ctx)
	if err != nil || !found {
		return found, err
	}
	r.wakeOne()
	if item.JobTook != nil {
		r.metrics.jobSeconds.Observe(item.JobTook.Seconds())
	}
	_ = r.publish(ctx, item) // after an error publishPending tries again, and logs
	timer.ObserveDuration()
	return true, nil
}

// countPending counts the pending items and wakes a worker if there are any: another replica may have
// stored them or been lost, or a failed item may be due again.
func (r *Runner) countPending(ctx context.Context) error {
	n, err := r.opts.Store.PendingItems(ctx)
	if err != nil {
		return err
	}
	r.metrics.unfinished.Store(int64(n))
	if n > 0 {
		r.wakeOne()
	}
	return nil
}

// loop runs pass repeatedly, with a pause after each run, until ctx ends.
func (r *Runner) loop(ctx context.Context, what string, every time.Duration, pass func(context.Context) error) {
	for {
		if err := pass(ctx); err != nil && ctx.Err() == nil {
			r.opts.Logger.Warn("background step failed, trying again", "step", what, "exception.message", err)
		}
		if !pause.For(ctx, every) {
			return
		}
	}
}
