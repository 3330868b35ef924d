package dispatcher

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
)

const (
	claimLimit   = 200 // due references a partition gives at once
	attemptChunk = 50  // deliveries a task carries at most
)

// runClock hands out deliveries as they become due. Every replica runs one;
// a claim is atomic, so each reference goes to one of them.
func (d *Dispatcher) runClock(ctx context.Context) {
	tick := time.NewTicker(d.ClockEvery)
	defer tick.Stop()
	for {
		if err := d.handOutDue(ctx); err != nil && ctx.Err() == nil {
			d.Logger.Error("due deliveries not handed out", "error", err)
		}
		select {
		case <-tick.C:
		case <-d.nudge:
		case <-ctx.Done():
			return
		}
	}
}

// wake makes the clock look now instead of at its next tick.
func (d *Dispatcher) wake() {
	select {
	case d.nudge <- struct{}{}:
	default: // it is about to look anyway
	}
}

func (d *Dispatcher) handOutDue(ctx context.Context) error {
	for d.intake.Err() == nil {
		now := d.Now()
		refs, err := d.Store.claim(ctx, now, claimLimit)
		if err != nil || len(refs) == 0 {
			return err
		}
		if err := d.handOut(ctx, refs, now); err != nil {
			return err
		}
	}
	return nil
}

// handOut makes tasks of references that were claimed at stamp.
func (d *Dispatcher) handOut(ctx context.Context, refs []string, stamp time.Time) error {
	var eventRefs, deliveryRefs, jobRefs []string
	for _, r := range refs {
		switch {
		case strings.HasPrefix(r, jobPrefix):
			jobRefs = append(jobRefs, r)
		case strings.Count(r, "/") == 2:
			deliveryRefs = append(deliveryRefs, r)
		default:
			eventRefs = append(eventRefs, r)
		}
	}
	again := d.Queue.again
	return errors.Join(
		d.enqueueChunks(ctx, again, taskDispatch, "", eventRefs, dispatchChunk),
		d.enqueueChunks(ctx, again, taskAttempt, strconv.FormatInt(stamp.UnixMilli(), 10)+" ", deliveryRefs, attemptChunk),
		d.enqueueChunks(ctx, again, taskJob, "", jobRefs, 1),
	)
}

// enqueueChunks makes tasks of size references each, for the queues that to
// names. All of them are open already: what a queue refuses, the sweep finds.
func (d *Dispatcher) enqueueChunks(ctx context.Context, to func() int, kind, head string, refs []string, size int) error {
	for len(refs) > 0 {
		n := min(len(refs), size)
		if err := d.Queue.enqueue(ctx, to(), kind, head+packRefs(refs[:n])); err != nil {
			return err
		}
		refs = refs[n:]
	}
	return nil
}
