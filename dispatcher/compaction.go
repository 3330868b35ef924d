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
	compactTogether = 32
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
		left := d.compact(ctx, d.Queue.Owned())
		for len(left) > 0 && pause.For(ctx, compactTurn) {
			left = d.compact(ctx, left)
		}
		if !pause.For(ctx, compactEvery) {
			return
		}
	}
}

// compact makes one pass over partitions, and returns those that have more to compact.
func (d *Dispatcher) compact(ctx context.Context, partitions []int) (left []int) {
	for group := range slices.Chunk(partitions, compactTogether) {
		began := time.Now() //nolint:forbidigo // paces, decides nothing
		compacted, more, err := d.Deliveries.Compact(ctx, d.opts.Now(), group)
		d.metrics.compacted.Add(float64(compacted))
		left = append(left, more...)
		if err != nil && ctx.Err() == nil {
			d.opts.Logger.Error("settled events not compacted", "exception.message", err)
		}
		if !pause.For(ctx, compactRest*time.Since(began)) { //nolint:forbidigo // as above
			return nil
		}
	}
	return left
}
