package registry_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/subscriberstest"
)

// A shard that hangs fails the calls of its own companies only.
func TestHungShardFailsAlone(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr()}, ReadTimeout: time.Minute, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { noErr(t, client.Close()) })
	b := &bundle{subscriberstest.On(client, subscribers.StoreOptions{})}
	wanted := b.companies(t, 60, 1)
	hangs, hanging := make([]bool, len(wanted)), 0
	for i, w := range wanted {
		master, err := client.MasterForKey(t.Context(), layout.CompanyKey(w.Company))
		noErr(t, err)
		if hangs[i] = master.Options().Addr == servers[1].Addr(); hangs[i] {
			hanging++
		}
	}
	if hanging == 0 || hanging == len(wanted) {
		t.Fatalf("%d of %d companies on one shard", hanging, len(wanted))
	}

	copies := b.Registry()
	servers[1].Pause()
	defer servers[1].Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i, loaded := range copies.SubscribersOf(ctx, wanted...) {
		if failed := loaded.Err != nil; failed != hangs[i] {
			t.Errorf("company %d, hanging %v: %v", i, hangs[i], loaded.Err)
		}
	}
}
