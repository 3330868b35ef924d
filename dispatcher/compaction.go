package dispatcher

import (
	"context"
	"slices"
	"time"

	"spendhook/internal/pause"
)

const (
	compactEvery = 10 * time.Second       // pause after a pass that left nothing to compact
	compactTurn  = 250 * time.Millisecond // pause after a pass that left more
	// compactTogether is how many partitions one round trip compacts.
	compactTogether = 8
	// compactRest is the pause after a round trip, in durations of that round trip:
	// Redis spends at most a fifth of its time on compaction.
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

// compact makes one pass over all due partitions, and reports whether more is left.
func (d *Dispatcher) compact(ctx context.Context) (more bool) {
	due, err := d.Deliveries.CompactionDue(ctx, d.opts.Now(), d.Queue.Owned())
	for group := range slices.Chunk(due, compactTogether) {
		began := time.Now() //nolint:forbidigo // paces, decides nothing
		compacted, rest, failed := d.Deliveries.Compact(ctx, d.opts.Now(), group)
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
