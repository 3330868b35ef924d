// Package storedformat reads in which format the work of each partition is stored and
// which formats the living replicas read, and raises it once all of them read the new one.
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

	"spendhook/dispatcher/workqueue/queues"
	"spendhook/internal/partition"
	"spendhook/internal/script"
)

//go:embed lua/format.lua
var formatSource string

var formatScript = queues.Script(formatSource, true)

// livingFor is how long after its last heartbeat a replica may still come back:
// several times longer than others wait before they take its work over.
const livingFor = 15 * time.Second

// Reader is a living replica and the formats that it reads.
type Reader struct {
	Replica        string
	Oldest, Newest int
}

// Reads reports whether the replica can work on what is stored in a format.
func (r Reader) Reads(format int) bool { return r.Oldest <= format && format <= r.Newest }

// Formats is in which formats the partitions are stored, and who reads them.
type Formats struct {
	Partitions [partition.Count]int
	Readers    []Reader // by name
}

// Read reads the stored formats.
func Read(ctx context.Context, client redis.UniversalClient) (Formats, error) {
	all := make([]int, partition.Count)
	for p := range all {
		all[p] = p
	}
	return run(ctx, client, all, 0)
}

// ErrOldReplica means that a living replica cannot read the new format.
var ErrOldReplica = errors.New("a living replica does not read the new format: stop it first")

// Raise raises partitions to a format that this build reads, each in one
// step, and returns how many it has raised. Those that have it stay. After an
// error it may be called again.
//
// The partitions that keep the heartbeats of a shard come first: from then on the
// heartbeat of a replica that cannot read the format is refused, so that no such
// replica comes to life while the others are raised.
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
	leaders, others, err := leadersFirst(ctx, client)
	if err != nil {
		return 0, err
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

// leadersFirst splits the partitions into those that keep the heartbeats of a
// shard and the others.
func leadersFirst(ctx context.Context, client redis.UniversalClient) (leaders, others []int, err error) {
	led := make(map[string]bool)
	for p := range partition.Count {
		shard, err := partition.Shard(ctx, client, p)
		if err != nil {
			return nil, nil, fmt.Errorf("find the shard of partition %d: %w", p, err)
		}
		if led[shard] {
			others = append(others, p)
		} else {
			led[shard] = true
			leaders = append(leaders, p)
		}
	}
	return leaders, others, nil
}

func run(ctx context.Context, client redis.UniversalClient, partitions []int, to int) (Formats, error) {
	calls := make([]*script.Call, len(partitions))
	for i, p := range partitions {
		calls[i] = &script.Call{
			Script: formatScript, Keys: queues.Keys(p), Args: []any{partition.Prefix(p), to, livingFor.Milliseconds()},
		}
	}
	var out Formats
	if err := script.Run(ctx, client, nil, calls...); err != nil {
		return out, fmt.Errorf("stored format: %w", err)
	}
	readers := make(map[string]Reader)
	for i, c := range calls {
		list, _ := c.Reply().([]any)
		if len(list) < 2 {
			return out, errors.New("stored format: unexpected reply")
		}
		now, _ := list[1].(int64)
		out.Partitions[partitions[i]] = int(now)
		for j := 2; j+1 < len(list); j += 2 {
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
