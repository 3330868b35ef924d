package workqueue

import (
	"context"
	_ "embed" // the script
	"fmt"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/partition"
	"spendhook/internal/script"
)

// Backlog is what waits in some partitions.
type Backlog struct {
	Pending int64 // events that are not settled
	// OldestDue is how long the work has waited that is due for longest and that
	// its receiver does not hold; 0: there is none.
	OldestDue time.Duration

	Quarantined int64 // entries of the quarantine

	byPartition map[int]int64 // pending events
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
	q.passed.forget()
	lately := time.Now().Add(-passedMoved) //nolint:forbidigo // for metrics
	b := Backlog{byPartition: make(map[int]int64, len(partitions))}
	for i, c := range calls {
		reply, _ := c.Reply().([]any)
		if len(reply) < 3 {
			continue
		}
		pending, _ := reply[0].(int64)
		waited, _ := reply[1].(int64)
		quarantined, _ := reply[2].(int64)
		b.Pending += pending
		b.Quarantined += quarantined
		b.byPartition[partitions[i]] = pending
		for at := 3; at+1 < len(reply); at += 2 {
			company, err := uuid.Parse(text(reply[at]))
			if of, _ := reply[at+1].(int64); err == nil && !q.passed.since(company, lately) {
				waited = max(waited, of)
			}
		}
		b.OldestDue = max(b.OldestDue, time.Duration(waited)*time.Millisecond)
	}
	return b, nil
}
