package dispatcher

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
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
		if err := d.giveBackRefused(ctx); err != nil && ctx.Err() == nil {
			d.Logger.Error("references that the queue refused not given back", "error", err)
		}
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
	return errors.Join(
		d.enqueueChunks(ctx, taskDispatch, "", eventRefs, dispatchChunk),
		d.enqueueChunks(ctx, taskAttempt, strconv.FormatInt(stamp.UnixMilli(), 10)+" ", deliveryRefs, attemptChunk),
		d.enqueueChunks(ctx, taskJob, "", jobRefs, 1),
	)
}

// enqueueChunks makes tasks of size references each. What the queue refuses is
// open already, and is remembered for the clock.
func (d *Dispatcher) enqueueChunks(ctx context.Context, kind, head string, refs []string, size int) error {
	for len(refs) > 0 {
		n := min(len(refs), size)
		if err := d.Queue.enqueue(ctx, kind, head+strings.Join(refs[:n], " ")); err != nil {
			d.refused.add(refs)
			return err
		}
		refs = refs[n:]
	}
	return nil
}

// maxRefused bounds the references remembered. What does not fit is found by
// the sweep, later.
const maxRefused = 10_000

// refused is the open references that the queue did not take.
type refused struct {
	mu   sync.Mutex
	refs []string
}

func (r *refused) add(refs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refs = append(r.refs, refs[:min(len(refs), maxRefused-len(r.refs))]...)
}

func (r *refused) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	refs := r.refs
	r.refs = nil
	return refs
}

// giveBackRefused makes due again what the queue refused, once Redis is back.
func (d *Dispatcher) giveBackRefused(ctx context.Context) error {
	refs := d.refused.take()
	if len(refs) == 0 {
		return nil
	}
	if _, err := d.Store.giveBack(ctx, d.Now(), refs); err != nil {
		d.refused.add(refs)
		return err
	}
	return nil
}

// runSweep looks for lost work and reads the gauges.
func (d *Dispatcher) runSweep(ctx context.Context) {
	tick := time.NewTicker(d.SweepEvery)
	defer tick.Stop()
	for {
		if err := d.sweep(ctx); err != nil && ctx.Err() == nil {
			d.Logger.Error("sweep failed", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// reclaimLimit is how many lost references a partition gives in one sweep step.
const reclaimLimit = 200

// sweep hands out again what the queue has lost.
func (d *Dispatcher) sweep(ctx context.Context) error {
	queues, err := d.Queue.states()
	if err != nil {
		return err
	}
	if err := d.readGauges(ctx, queues); err != nil {
		return err
	}
	if err := d.Store.purgeDead(ctx, d.Now(), reclaimLimit); err != nil {
		return err
	}
	var wait time.Duration
	for _, q := range queues {
		wait = max(wait, q.oldestWait)
	}
	cutoff := d.fronts.pass(d.Now(), wait, d.LostAfter)
	for {
		now := d.Now()
		refs, err := d.Store.reclaim(ctx, cutoff, now, reclaimLimit)
		if err != nil || len(refs) == 0 {
			return err
		}
		d.Logger.Warn("work was lost by the queue and is handed out again", "references", len(refs))
		d.metrics.recovered.WithLabelValues(reasonLost).Add(float64(len(refs)))
		if err := d.handOut(ctx, refs, now); err != nil {
			return err
		}
	}
}

// fronts remembers, sweep by sweep, when the oldest task still waiting had been
// enqueued. Tasks are taken in their order, so what was handed out before the
// front of lostAfter ago had been taken by then, and is in flight no more: if it
// is not settled, it is lost.
type fronts []front

type front struct{ at, oldest time.Time }

// frontSlack is for the time between a hand-out's stamp and its enqueueing.
const frontSlack = 5 * time.Second

// pass notes the front of now and returns the newest stamp that means lost.
func (f *fronts) pass(now time.Time, wait, lostAfter time.Duration) time.Time {
	*f = append(*f, front{at: now, oldest: now.Add(-wait)})
	past := now.Add(-lostAfter)
	for len(*f) > 1 && !(*f)[1].at.After(past) {
		*f = (*f)[1:]
	}
	if first := (*f)[0]; !first.at.After(past) {
		return first.oldest.Add(-min(frontSlack, lostAfter))
	}
	return time.UnixMilli(0) // it has not watched for long enough
}

// readGauges measures what metrics show of Redis, so that a scrape need not.
func (d *Dispatcher) readGauges(ctx context.Context, queues []queueState) error {
	g, err := d.Store.gauges(ctx)
	if err != nil {
		return err
	}
	d.metrics.pending.Set(float64(g.open + g.delayed))
	d.metrics.dead.Set(float64(g.dead))
	age := 0.0
	if !g.oldest.IsZero() {
		age = max(0, d.Now().Sub(g.oldest).Seconds())
	}
	d.metrics.oldest.Set(age)
	for _, q := range queues {
		d.metrics.queue(q)
	}
	return nil
}
