package redisx

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// scanCount is how many keys one step of a scan examines.
const scanCount = 1000

// Scan calls f for each key that matches the pattern, on every master of a Cluster. A key that
// exists during the whole scan is passed at least once, maybe more often. Calls of f do not
// overlap. It reads all keys, so that it is for an operator's commands, not for the daemon.
func Scan(ctx context.Context, client redis.UniversalClient, pattern string, f func(ctx context.Context, key string) error) error {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return scan(ctx, client, pattern, f)
	}
	var one sync.Mutex
	return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		return scan(ctx, master, pattern, func(ctx context.Context, key string) error {
			one.Lock()
			defer one.Unlock()
			return f(ctx, key)
		})
	})
}

func scan(ctx context.Context, client redis.Cmdable, pattern string, f func(ctx context.Context, key string) error) error {
	keys := client.Scan(ctx, 0, pattern, scanCount).Iterator()
	for keys.Next(ctx) {
		if err := f(ctx, keys.Val()); err != nil {
			return err
		}
	}
	if err := keys.Err(); err != nil {
		return fmt.Errorf("scan keys: %w", err)
	}
	return nil
}

// OrEmpty is a reply that is a text, "" for one that does not exist.
func OrEmpty(text string, err error) (string, error) {
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, err
}
