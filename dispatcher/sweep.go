package dispatcher

import (
	"context"
	"slices"
	"time"
)

const (
	// gaugeSweeps is how many sweeps go by from one reading of the gauges to the next.
	gaugeSweeps = 10
	// purgeLimit is how many old dead letters of a partition one sweep drops.
	purgeLimit = 200
	// lookLimit is how many references of a partition one sweep looks at.
	lookLimit = 1000
)

// hastySweeps is how many sweeps after the start come twice as fast: what a
// replica that died had just taken from the queue and not yet noted is found
// only once the queue has moved on a little.
const hastySweeps = 8

// runSweep looks for lost work and, less often, reads the gauges.
func (d *Dispatcher) runSweep(ctx context.Context) {
	tick := time.NewTicker(d.SweepEvery / 2)
	defer tick.Stop()
	for n := 0; ; n++ {
		if n == hastySweeps {
			tick.Reset(d.SweepEvery)
		}
		if err := d.sweep(ctx, n%gaugeSweeps == 0); err != nil && ctx.Err() == nil {
			d.Logger.Error("sweep failed", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (d *Dispatcher) sweep(ctx context.Context, gauges bool) error {
	queues, err := d.Queue.states()
	if err != nil {
		return err
	}
	if gauges {
		if err := d.readGauges(ctx, queues); err != nil {
			return err
		}
		if err := d.Store.purgeDead(ctx, d.Now(), purgeLimit); err != nil {
			return err
		}
	}
	return d.recoverLost(ctx, queues)
}

// primeSweep is the first look. Where this replica is the only one, nobody can
// be about to note what it finds: then the sweep's first look is the second.
func (d *Dispatcher) primeSweep(ctx context.Context) error {
	replicas, err := d.Store.replicas(ctx)
	if err != nil || len(replicas) > 1 {
		return err
	}
	queues, err := d.Queue.states()
	if err != nil {
		return err
	}
	found, err := d.suspect(ctx, queues)
	d.suspects = stamps(found)
	return err
}

// recoverLost hands out again the open references that were suspect at the last
// look and still are. One look alone could fall between a task's being taken
// from the queue and its being noted as in flight.
func (d *Dispatcher) recoverLost(ctx context.Context, queues []queueState) error {
	found, err := d.suspect(ctx, queues)
	if err != nil {
		return err
	}
	var lost []handedOut
	for _, h := range found {
		if stamp, ok := d.suspects[h.ref]; ok && stamp == h.stamp {
			lost = append(lost, h)
		}
	}
	d.suspects = stamps(found)
	if len(lost) == 0 {
		return nil
	}
	now := d.Now()
	refs, err := d.Store.reclaim(ctx, now, lost)
	if err != nil || len(refs) == 0 {
		return err
	}
	d.Logger.Warn("work was lost and is handed out again", "references", len(refs))
	d.metrics.recovered.WithLabelValues(reasonLost).Add(float64(len(refs)))
	return d.handOut(ctx, refs, now)
}

// suspect returns the open references, with the stamp of their hand-out, whose
// task must have been taken from the queue and that no replica has noted as in
// flight. Tasks are taken in their order, so that holds for what was handed out
// before the oldest task that still waits.
func (d *Dispatcher) suspect(ctx context.Context, queues []queueState) ([]handedOut, error) {
	waiting, oldest := 0, time.Duration(0)
	for _, q := range queues {
		waiting += q.pending
		oldest = max(oldest, q.oldestWait)
	}
	now := d.Now()
	taken, err := d.Store.openUntil(ctx, now.Add(-oldest-d.LostAfter), lookLimit)
	if err != nil {
		return nil, err
	}
	if waiting == 0 { // stamps of the future are from before the clock was put back
		ahead, err := d.Store.openFrom(ctx, now.Add(clockSlack), lookLimit)
		if err != nil {
			return nil, err
		}
		taken = append(taken, ahead...)
	}
	if len(taken) == 0 {
		return nil, nil
	}
	noted, err := d.Store.noted(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(taken, func(h handedOut) bool { return noted[h.ref] }), nil
}

// stamps maps references to when they were handed out.
func stamps(found []handedOut) map[string]int64 {
	out := make(map[string]int64, len(found))
	for _, h := range found {
		out[h.ref] = h.stamp
	}
	return out
}

// clockSlack is by how much replicas' clocks may differ.
const clockSlack = 10 * time.Second

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
