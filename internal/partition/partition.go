// Package partition spreads companies over a fixed number of partitions, each
// of which keeps all its Redis keys in one Cluster slot.
package partition

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Count is the number of partitions. It is part of the stored format.
const Count = 256

// All lists the partitions.
func All() []int {
	all := make([]int, Count)
	for p := range all {
		all[p] = p
	}
	return all
}

// Of returns the partition of a company, 0..Count-1.
func Of(company uuid.UUID) int {
	h := fnv.New32a()
	_, _ = h.Write(company[:]) // never fails
	return int(h.Sum32() % Count)
}

var prefixes = func() (all [Count]string) {
	for p := range all {
		all[p] = "sh:{" + strconv.Itoa(p) + "}:"
	}
	return all
}()

// Prefix returns what every key of partition p begins with. Its hash tag puts
// all of them into one slot.
func Prefix(p int) string { return prefixes[p] }

// Key returns the prefix of a company's partition followed by rest.
func Key(company uuid.UUID, rest string) string { return Prefix(Of(company)) + rest }

// Shard names the Redis server that serves partition p now: the address of a
// Cluster's master, "" for any other kind of client. It asks the client's own
// copy of the slot map, so it rarely takes a round trip.
func Shard(ctx context.Context, client redis.UniversalClient, p int) (string, error) {
	return ShardOf(ctx, client, Prefix(p))
}

// ShardOf names the Redis server that has a key now, as Shard does. With an error the name is "".
func ShardOf(ctx context.Context, client redis.UniversalClient, key string) (string, error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return "", nil
	}
	node, err := cluster.MasterForKey(ctx, key)
	if err != nil {
		return "", err
	}
	return node.Options().Addr, nil
}

// ByShard groups items by the Redis server that has their key now, named as by Shard. Items without a server, for
// which err is the reason, are in the group "".
func ByShard[T any](ctx context.Context, client redis.UniversalClient, items []T, key func(T) string) (groups map[string][]T, err error) {
	groups = make(map[string][]T, 1)
	for _, item := range items {
		shard, failed := ShardOf(ctx, client, key(item))
		if failed != nil {
			err = fmt.Errorf("find the shard of %s: %w", key(item), failed)
		}
		groups[shard] = append(groups[shard], item)
	}
	return groups, err
}

// OldestFormat is the oldest stored format that this build reads.
const OldestFormat = 1

// newest is text so that the linker can set it, to build a daemon of the next
// release: -ldflags "-X spendhook/internal/partition.newest=2".
var newest = "1"

var newestFormat = func() int {
	n, err := strconv.Atoi(newest)
	if err != nil || n < OldestFormat {
		panic("partition.newest is no format: " + newest)
	}
	return n
}()

// NewestFormat is the newest stored format that this build reads, and the one
// that it raises partitions to.
func NewestFormat() int { return newestFormat }

//go:embed format.lua
var formatSource string

// FormatLua is the first part of every script that writes keys of partitions. It defines the
// function check, which the script must call before anything else.
func FormatLua() string {
	return fmt.Sprintf("local OLDEST, NEWEST = %d, %d\n", OldestFormat, newestFormat) + formatSource
}

// FormatError says that this build cannot read a partition. Nothing was done.
type FormatError struct {
	Partition, Format int
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("partition %d has stored format %d, this build reads %d to %d: run a release that reads it",
		e.Partition, e.Format, OldestFormat, newestFormat)
}

// CheckedError returns the FormatError if the function check refused the script; else err.
func CheckedError(err error) error {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return err
	}
	e := &FormatError{}
	if n, _ := fmt.Sscanf(reply.Error(), "FORMAT %d %d", &e.Partition, &e.Format); n == 2 {
		return e
	}
	return err
}
