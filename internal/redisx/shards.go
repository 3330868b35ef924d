package redisx

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// ByShard splits items by the shard that has their key, so that a call for one
// shard waits for no other. Without Cluster there is one.
func ByShard[T any](ctx context.Context, client redis.UniversalClient, items []T, key func(T) string) [][]T {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return [][]T{items}
	}
	var groups [][]T
	index := make(map[*redis.Client]int)
	for _, item := range items {
		master, _ := cluster.MasterForKey(ctx, key(item)) // nil when there is none: the call will fail
		i, ok := index[master]
		if !ok {
			i = len(groups)
			index[master] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], item)
	}
	return groups
}
