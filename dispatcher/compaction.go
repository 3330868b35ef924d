package dispatcher

import (
	"context"
	"slices"
	"time"

	"spendhook/internal/pause"
)

const (
	compactEvery = 10 * time.Second       // between two looks when there is nothing more to compact
	compactTurn  = 250 * time.Millisecond // else
	// compactTogether is how many partitions one round trip compacts.
	compactTogether = 8
	// compactRest is for how many times as long as a round trip took the next one
	// waits, so that Redis spends a fifth of its time on it at most.
	compactRest = 4
)

// runCompaction compacts settled events of the partitions that this replica owns.
func (d *Dispatcher) runCompaction(ctx context.Context) {
	if d.opts.Policy.KeepDelivered <= 0 {
		return
	}
	for {
		wait := compactEvery
		if d.compact(ctx) {
			wait = compactTurn
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// compact makes one turn of all partitions, and reports whether there is more to do.
func (d *Dispatcher) compact(ctx context.Context) (more bool) {
	due, err := d.deliveries.CompactionDue(ctx, d.opts.Now(), d.queue.Owned())
	for group := range slices.Chunk(due, compactTogether) {
		began := time.Now() //nolint:forbidigo // paces, decides nothing
		compacted, rest, failed := d.deliveries.Compact(ctx, d.opts.Now(), group)
		d.metrics.compacted.Add(float64(compacted))
		more = more || rest
		if failed != nil {
			err = failed
		}
		if !pause.For(ctx, compactRest*time.Since(began)) { //nolint:forbidigo // as above
			return false
		}
	}
	if err != nil && ctx.Err() == nil {
		d.opts.Logger.Error("settled events not compacted", "exception.message", err)
		return false
	}
	return more
}
