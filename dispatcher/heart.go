package dispatcher

import (
	"context"
	"slices"
	"time"
)

// A replica that has not said for silence that it lives, at two beats in a row,
// is dead: with two beats a second its work is taken over within 3.5 s.
const silence = 2500 * time.Millisecond

// runHeart says that this replica lives and takes over from those that don't.
// A replica that could not reach Redis itself suspects nobody: they could not
// either.
func (d *Dispatcher) runHeart(ctx context.Context) {
	tick := time.NewTicker(d.BeatEvery)
	defer tick.Stop()
	var suspects []string
	for {
		silent, err := d.Store.beat(ctx, d.Replica, silence)
		if err != nil && ctx.Err() == nil {
			d.Logger.Error("heartbeat failed", "error", err)
		}
		for _, replica := range silent {
			if slices.Contains(suspects, replica) {
				d.takeOver(ctx, replica)
			}
		}
		suspects = silent
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// takeOver makes the work of a dead replica due at once. One replica does it;
// should it die as well, another begins again when the lock has expired.
func (d *Dispatcher) takeOver(ctx context.Context, replica string) {
	mine, err := d.Store.lockTakeover(ctx, replica, d.Replica)
	if err == nil && mine {
		d.Logger.Warn("a replica is dead, taking over its work", "dead_replica", replica)
		err = d.giveBackWorkOf(ctx, replica)
	}
	if err != nil && ctx.Err() == nil {
		d.Logger.Error("takeover failed", "dead_replica", replica, "error", err)
	}
}

// giveBackWorkOf makes due what a replica noted as in flight, and forgets it.
func (d *Dispatcher) giveBackWorkOf(ctx context.Context, replica string) error {
	for cursor := uint64(0); ; {
		refs, next, err := d.Store.inFlight(ctx, replica, cursor)
		if err != nil {
			return err
		}
		n, err := d.Store.giveBack(ctx, d.Now(), refs)
		if err != nil {
			return err
		}
		d.metrics.recovered.WithLabelValues(reasonTakeover).Add(float64(n))
		if cursor = next; cursor == 0 {
			break
		}
	}
	d.wake()
	return d.Store.forget(ctx, replica)
}
