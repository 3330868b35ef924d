package dispatcher

import (
	"context"
	"slices"
	"time"

	"spendhook/internal/pause"
)

const (
	compactTurn = 250 * time.Millisecond // pause before partitions with more events are compacted again
	// compactTogether is how many partitions one round trip compacts.
	compactTogether = 32
	// The pause after a round trip is compactRest times as long as the round trip, so that
	// Redis spends at most a fifth of its time on compaction.
	compactRest = 4
)

// runCompaction compacts settled events of the partitions that this replica owns.
func (d *Dispatcher) runCompaction(ctx context.Context) {
	if d.opts.Policy.KeepDelivered > 0 {
		compactInPasses(ctx, d.opts.CompactEvery, d.Queue.Owned, d.compact)
	}
}

// compactInPasses starts a pass over all partitions every time every has passed. In between it compacts the
// partitions that have more events: they do not delay the next pass.
func compactInPasses(ctx context.Context, every time.Duration, owned func() []int, compact func(context.Context, []int) (left []int)) {
	for ctx.Err() == nil {
		next := time.Now().Add(every) //nolint:forbidigo // paces, decides nothing
		left := compact(ctx, owned())
		for len(left) > 0 && time.Now().Before(next) && pause.For(ctx, compactTurn) { //nolint:forbidigo // as above
			left = compact(ctx, left)
		}
		pause.For(ctx, time.Until(next)) //nolint:forbidigo // as above
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
