package subscribers_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/listing"
)

// In Redis Cluster a script's keys must share a slot, and pipelines span nodes.
func TestEverythingWorksInACluster(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, server := range redistest.Cluster(t, 3) {
		addrs = append(addrs, server.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { noErr(t, client.Close()) })
	b := &bundle{client: client, clock: newClock()}
	b.store = subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: sealtest.Keyring(), Now: b.clock.Now})

	var last subscribers.Subscriber
	for range 40 {
		b.company = uuid.New()
		s := b.create(t, "https://example.com/")
		last = s
		for what, call := range everyCall(t, b, s) {
			if what != "delete" {
				if err := call(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
		}
	}
	_, total, err := b.lists().List(t.Context(), listing.Filter{})
	noErr(t, err)
	if total != 80 {
		t.Errorf("%d listed, want 80", total)
	}
	noErr(t, b.store.Delete(t.Context(), b.company, last.UUID))
	err = client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		if n := node.DBSize(ctx).Val(); n == 0 {
			t.Errorf("%v holds no key", node)
		}
		return nil
	})
	noErr(t, err)
}
