// Package script runs many Lua scripts in one Redis round trip.
package script

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// Call is one run of a script. In Cluster all its keys must share a slot.
// After [Run] the reply is read with Reply.
type Call struct {
	Script *redis.Script
	Keys   []string
	Args   []any

	cmd *redis.Cmd
}

// Reply is the script's answer. It is nil if Run returned an error and this call failed.
func (c *Call) Reply() any { return c.cmd.Val() }

// Result returns the script's answer or the error of this call, whatever Run returned. A script
// without an answer returns nil.
func (c *Call) Result() (any, error) {
	v, err := c.cmd.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return v, partition.CheckedError(err)
}

// Strings is Result for a script that answers with a list of texts.
func (c *Call) Strings() ([]string, error) { return c.cmd.StringSlice() }

// Numbers returns the answer of a script that answers with a list of integers; nil after an error of
// this call.
func (c *Call) Numbers() []int64 {
	numbers, _ := c.cmd.Int64Slice()
	return numbers
}

// Run executes the calls in one pipeline. A server does not know a script after a restart or a
// flush of its cache: a second round trip then sends the whole script. Run returns the first error.
// Some calls may have run then, so each call must be safe to run again.
func Run(ctx context.Context, client redis.UniversalClient, calls ...*Call) error {
	pipe := client.Pipeline()
	for _, c := range calls {
		c.cmd = c.Script.EvalSha(ctx, pipe, c.Keys, c.Args...)
	}
	cmds, _ := pipe.Exec(ctx) // each command has its own error
	unknown := runUnknown(ctx, client, calls)
	if err := firstError(cmds); err != nil {
		return fmt.Errorf("run scripts: %w", partition.CheckedError(err))
	}
	return unknown
}

func runUnknown(ctx context.Context, client redis.UniversalClient, calls []*Call) error {
	pipe := client.Pipeline()
	for _, c := range calls {
		if redis.HasErrorPrefix(c.cmd.Err(), "NOSCRIPT") {
			c.cmd = c.Script.Eval(ctx, pipe, c.Keys, c.Args...)
		}
	}
	cmds, _ := pipe.Exec(ctx)
	if err := firstError(cmds); err != nil {
		return fmt.Errorf("send scripts: %w", partition.CheckedError(err))
	}
	return nil
}

// firstError leaves out nil replies, which are answers, and unknown scripts,
// which are sent again.
func firstError(cmds []redis.Cmder) error {
	for _, c := range cmds {
		err := c.Err()
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			return err
		}
	}
	return nil
}

// Now is the argument for the Lua function time_of: "" for Redis's own time, which a script uses without a
// clock of a test.
func Now(clock func() time.Time) any {
	if clock == nil {
		return ""
	}
	return clock().UnixMilli()
}

// Groups splits items into groups of at most size for one call each. In Cluster all items of a
// group are of one slot. Items of a slot stay in order.
func Groups[T any](client redis.UniversalClient, items []T, size int, slot func(T) int) [][]T {
	if _, cluster := client.(*redis.ClusterClient); !cluster {
		return slices.Collect(slices.Chunk(items, size))
	}
	var groups [][]T
	current := make(map[int]int) // the group that a slot's items go to
	for _, item := range items {
		i, ok := current[slot(item)]
		if !ok || len(groups[i]) == size {
			i = len(groups)
			current[slot(item)] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], item)
	}
	return groups
}
