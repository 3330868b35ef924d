package dispatcher

import (
	"context"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
)

// Backlog measures what waits in all partitions, whoever owns them.
func (d *Dispatcher) Backlog(ctx context.Context) (workqueue.Backlog, error) {
	all := make([]int, partition.Count)
	for p := range all {
		all[p] = p
	}
	return d.queue.Backlog(ctx, all)
}
