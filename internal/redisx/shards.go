package redisx

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"spendhook/internal/partition"
)

// scanCount is how many keys one step of a scan examines.
const scanCount = 1000

// wakeUpKey has the slot of the keys of asynq.
const wakeUpKey = "asynq:{spendhook}"

// EachMaster calls f concurrently for each master of a Cluster that has a partition, the
// encryption keys or the wake-ups, with its address as name. For any other client it calls f once,
// with the name "". It uses the client's own copy of the slot map: ForEachMaster would read the
// map again, and a master that hangs would delay that.
func EachMaster(ctx context.Context, client redis.UniversalClient, f func(ctx context.Context, name string, master redis.UniversalClient) error) error {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return f(ctx, "", client)
	}
	keys := []string{probeKey, wakeUpKey}
	for _, p := range partition.All() {
		keys = append(keys, partition.Prefix(p))
	}
	masters := make(map[*redis.Client]bool)
	for _, key := range keys {
		master, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return fmt.Errorf("find the master of %s: %w", key, err)
		}
		masters[master] = true
	}
	var calls errgroup.Group
	for master := range masters {
		calls.Go(func() error { return f(ctx, master.Options().Addr, master) })
	}
	return calls.Wait()
}

// Scan calls f for the keys that match the pattern, on every master of a Cluster. A key that
// exists during the whole scan is passed at least once, maybe more often. Calls of f do not
// overlap. It reads all keys: it is for an operator's commands, not for the daemon.
func Scan(ctx context.Context, client redis.UniversalClient, pattern string, f func(ctx context.Context, key string) error) error {
	var one sync.Mutex
	scan := func(ctx context.Context, server redis.UniversalClient) error {
		keys := server.Scan(ctx, 0, pattern, scanCount).Iterator()
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
	}
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return scan(ctx, client)
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return scan(ctx, master) })
}
