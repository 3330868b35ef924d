package subscribers

import (
	"context"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// loadChunk is how many companies are read in one round trip. It bounds what the
// answers hold in memory at a time.
const loadChunk = 128

// byShard splits items by the shard that has their key, so that a call for one
// shard waits for no other. Without Cluster there is one.
func byShard[T any](ctx context.Context, client redis.UniversalClient, items []T, key func(T) string) [][]T {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return [][]T{items}
	}
	var groups [][]T
	index := make(map[*redis.Client]int)
	for _, item := range items {
		master, _ := cluster.MasterForKey(ctx, key(item)) // nil where there is none: the call will say so
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

// readHashes reads the hashes of companies in one round trip. Each command has
// its own error.
func (s *Store) readHashes(ctx context.Context, companies []uuid.UUID) []*redis.MapStringStringCmd {
	pipe := s.opts.Client.Pipeline()
	hashes := make([]*redis.MapStringStringCmd, len(companies))
	for i, company := range companies {
		hashes[i] = pipe.HGetAll(ctx, CompanyKey(company))
	}
	_, _ = pipe.Exec(ctx) // the commands have it
	return hashes
}
