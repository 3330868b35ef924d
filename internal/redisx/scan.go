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

// EachMaster calls f for every master of a Cluster, concurrently and with its address, or for
// the one server of any other client, with the name "".
func EachMaster(ctx context.Context, client redis.UniversalClient, f func(ctx context.Context, name string, master redis.UniversalClient) error) error {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return f(ctx, "", client)
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		return f(ctx, master.Options().Addr, master)
	})
}

// Scan calls f for the keys that match the pattern, on every master of a Cluster. A key that
// exists during the whole scan is passed at least once, maybe more often. Calls of f do not
// overlap. It reads all keys, so that it is for an operator's commands, not for the daemon.
func Scan(ctx context.Context, client redis.UniversalClient, pattern string, f func(ctx context.Context, key string) error) error {
	var one sync.Mutex
	return EachMaster(ctx, client, func(ctx context.Context, _ string, master redis.UniversalClient) error {
		keys := master.Scan(ctx, 0, pattern, scanCount).Iterator()
		for keys.Next(ctx) {
			one.Lock()
			err := f(ctx, keys.Val())
			one.Unlock()
			if err != nil {
				return err
			}
		}
		if err := keys.Err(); err != nil {
			return fmt.Errorf("scan keys: %w", err)
		}
		return nil
	})
}

// OrEmpty is a reply that is a text, "" for one that does not exist.
func OrEmpty(text string, err error) (string, error) {
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, err
}
