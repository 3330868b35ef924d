package workqueue

import (
	"context"
	_ "embed" // the script
	"fmt"
	"time"

	"spendhook/internal/partition"
	"spendhook/internal/script"
)

// Backlog is what waits in some partitions.
type Backlog struct {
	Pending   int64         // events that are not settled
	OldestDue time.Duration // how long the work has waited that is due for longest; 0: none is

	Quarantined int64 // entries of the quarantine
}

//go:embed lua/backlog.lua
var backlogSource string

var backlogScript = Script(backlogSource, true)

// Owned lists the partitions that this replica schedules now.
func (q *Queue) Owned() []int { return q.watch.ownedPartitions() }

// Backlog measures what waits in partitions.
func (q *Queue) Backlog(ctx context.Context, partitions []int) (Backlog, error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{Script: backlogScript, Keys: Keys(p), Args: []any{partition.Prefix(p)}}
	}
	if err := script.Run(ctx, q.opts.Client, nil, calls...); err != nil {
		return Backlog{}, fmt.Errorf("measure backlog: %w", err)
	}
	var b Backlog
	for _, c := range calls {
		counts, _ := c.Reply().([]any)
		if len(counts) != 3 {
			continue
		}
		pending, _ := counts[0].(int64)
		waited, _ := counts[1].(int64)
		quarantined, _ := counts[2].(int64)
		b.Pending += pending
		b.Quarantined += quarantined
		b.OldestDue = max(b.OldestDue, time.Duration(waited)*time.Millisecond)
	}
	return b, nil
}
