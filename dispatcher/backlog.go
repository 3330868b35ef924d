package dispatcher

import (
	"context"

	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/internal/partition"
)

// Backlog measures the pending work of all partitions, of every replica.
func (d *Dispatcher) Backlog(ctx context.Context) (backlog.Total, error) {
	all := make([]int, partition.Count)
	for p := range all {
		all[p] = p
	}
	return d.backlog.Measure(ctx, all)
}
