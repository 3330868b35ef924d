package redisx

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// scanCount is how many keys one step of a scan examines.
const scanCount = 1000

// Scan calls f for the keys that match the pattern, some at a time, on every
// master of a Cluster. A key that exists during the whole scan is passed at least once, maybe
// more often. Calls of f do not overlap. It reads all keys, so that it is for an operator's
// commands, not for the daemon.
func Scan(ctx context.Context, client redis.UniversalClient, pattern string, f func(context.Context, []string) error) error {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return scan(ctx, client, pattern, f)
	}
	var one sync.Mutex
	return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		return scan(ctx, master, pattern, func(ctx context.Context, keys []string) error {
			one.Lock()
			defer one.Unlock()
			return f(ctx, keys)
		})
	})
}

func scan(ctx context.Context, client redis.Cmdable, pattern string, f func(context.Context, []string) error) error {
	for cursor := uint64(0); ; {
		keys, next, err := client.Scan(ctx, cursor, pattern, scanCount).Result()
		if err != nil {
			return fmt.Errorf("scan keys: %w", err)
		}
		if len(keys) > 0 {
			if err := f(ctx, keys); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
