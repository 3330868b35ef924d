// Package partition spreads companies over a fixed number of partitions, each
// of which keeps all its Redis keys in one Cluster slot.
package partition

import (
	"context"
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
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return "", nil
	}
	node, err := cluster.MasterForKey(ctx, Prefix(p))
	if err != nil {
		return "", err
	}
	return node.Options().Addr, nil
}

// ByShard groups partitions by the Redis server that serves them now, named as by Shard.
func ByShard(ctx context.Context, client redis.UniversalClient, partitions []int) (map[string][]int, error) {
	groups := make(map[string][]int, 1)
	for _, p := range partitions {
		shard, err := Shard(ctx, client, p)
		if err != nil {
			return nil, fmt.Errorf("find the shard of partition %d: %w", p, err)
		}
		groups[shard] = append(groups[shard], p)
	}
	return groups, nil
}
