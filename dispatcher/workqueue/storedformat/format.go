// Package storedformat reads the stored format of each partition, and the formats that the live
// replicas read. It raises the stored format once all live replicas read the new one.
package storedformat

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/script"
)

//go:embed lua/format.lua
var formatSource string

var formatScript = queues.Script(formatSource, true)

// liveFor is how long a replica counts as live after its last heartbeat. It is several
// times longer than the other replicas wait before a takeover.
const liveFor = 15 * time.Second

// Reader is a live replica and the formats that it reads.
type Reader struct {
	Replica        string
	Oldest, Newest int
}

// Reads reports whether the replica can work on what is stored in a format.
func (r Reader) Reads(format int) bool { return r.Oldest <= format && format <= r.Newest }

// Formats lists the stored format of each partition, and the formats that replicas read.
type Formats struct {
	Partitions [partition.Count]int
	Readers    []Reader // by name
}

// Read reads the stored formats.
func Read(ctx context.Context, client redis.UniversalClient) (Formats, error) {
	return run(ctx, client, partition.All(), 0)
}

// ErrOldReplica means that a live replica cannot read the new format.
var ErrOldReplica = errors.New("a live replica does not read the new format: stop it first")

// Raise raises the stored format of all partitions to one that this build reads, each
// partition in one step. It returns how many it raised. It may be repeated after an error.
//
// It raises the partitions with the heartbeats of a shard first: then Redis refuses the
// heartbeat of a replica that cannot read the format. So no such replica can start while
// the other partitions are raised.
func Raise(ctx context.Context, client redis.UniversalClient, to int) (raised int, err error) {
	before, err := Read(ctx, client)
	if err != nil {
		return 0, err
	}
	for _, r := range before.Readers {
		if !r.Reads(to) {
			return 0, fmt.Errorf("%w: %s", ErrOldReplica, r.Replica)
		}
	}
	shards, err := partition.ByShard(ctx, client, partition.All(), partition.Prefix)
	if err != nil {
		return 0, err
	}
	var leaders, others []int
	for _, partitions := range shards {
		leaders, others = append(leaders, partitions[0]), append(others, partitions[1:]...)
	}
	for _, partitions := range [][]int{leaders, others} {
		after, err := run(ctx, client, partitions, to)
		if err != nil {
			return raised, err
		}
		for _, p := range partitions {
			switch {
			case after.Partitions[p] < to:
				return raised, fmt.Errorf("partition %d: %w", p, ErrOldReplica)
			case before.Partitions[p] < to:
				raised++
			}
		}
	}
	return raised, nil
}

func run(ctx context.Context, client redis.UniversalClient, partitions []int, to int) (Formats, error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{
			Script: formatScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), to, liveFor.Milliseconds()},
		}
	}
	var out Formats
	if err := script.Run(ctx, client, calls...); err != nil {
		return out, fmt.Errorf("read or raise stored format: %w", err)
	}
	readers := make(map[string]Reader)
	for i, c := range calls {
		list, _ := c.Reply().([]any)
		now, _ := list[0].(int64)
		out.Partitions[partitions[i]] = int(now)
		for j := 1; j+1 < len(list); j += 2 {
			replica, _ := list[j].(string)
			reads, _ := list[j+1].(string)
			r := Reader{Replica: replica}
			if _, err := fmt.Sscanf(reads, "%d-%d", &r.Oldest, &r.Newest); err != nil {
				return out, fmt.Errorf("formats that replica %s reads: %w", r.Replica, err)
			}
			readers[r.Replica] = r
		}
	}
	for _, name := range slices.Sorted(maps.Keys(readers)) {
		out.Readers = append(out.Readers, readers[name])
	}
	return out, nil
}
