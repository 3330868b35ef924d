package store

import (
	"context"
	_ "embed" // the script
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/script"
)

//go:embed lua/compact.lua
var compactSource string

var compactScript = queues.Script(layout.Lua()+layout.StubLua()+lib+compactSource, true)

// Bounds of one call of Compact for one partition.
const (
	compactMost  = 100
	compactBytes = 1 << 20
)

// CompactionDue lists those of the partitions that have events to compact.
func (s *Store) CompactionDue(ctx context.Context, now time.Time, partitions []int) ([]int, error) {
	until := strconv.FormatInt(now.Add(-s.opts.Policy.KeepDelivered).UnixMilli(), 10)
	counts, err := pipeline.Each(ctx, s.client, partitions, func(pipe redis.Pipeliner, p int) *redis.IntCmd {
		return pipe.ZCount(ctx, compactKey(p), "-inf", until)
	}) // each command has its own error
	var due []int
	for i, c := range counts {
		if c.Val() > 0 {
			due = append(due, partitions[i])
		}
	}
	if err != nil {
		err = fmt.Errorf("find events to compact: %w", err)
	}
	return due, err
}

// Compact drops the payload and the deliveries of events that were settled at least
// Policy.KeepDelivered ago, a bounded number per partition. It returns the number of compacted
// events, and whether more are due.
func (s *Store) Compact(ctx context.Context, now time.Time, partitions []int) (compacted int, more bool, err error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{Script: compactScript, Keys: queues.Keys(p), Args: []any{
			partition.Prefix(p), now.UnixMilli(), s.opts.Policy.KeepDelivered.Milliseconds(), compactMost, compactBytes,
		}}
	}
	if err = script.Run(ctx, s.client, calls...); err != nil {
		err = fmt.Errorf("compact events: %w", err)
	}
	for _, c := range calls {
		reply, _ := c.Result() // its error is err
		if counts, _ := reply.([]any); len(counts) == 2 {
			n, _ := counts[0].(int64)
			compacted += int(n)
			more = more || counts[1] == int64(1)
		}
	}
	return compacted, more, err
}
