package subscribers_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

// In Redis Cluster a script's keys must share a slot, and pipelines span nodes.
func TestEverythingWorksInACluster(t *testing.T) {
	t.Parallel()
	client := redistest.Cluster(t, 3)[0].ClusterClient()
	b := &bundle{subscriberstest.On(client, subscribers.StoreOptions{})}

	var last subscribers.Subscriber
	for range 40 {
		b.Company = uuid.New()
		s := b.Create(t, "https://example.com/")
		last = s
		for what, call := range everyCall(t, b, s) {
			if what != "delete" {
				if err := call(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
			}
		}
	}
	_, total, err := b.Registry().List(t.Context(), registry.Filter{})
	noErr(t, err)
	if total != 80 {
		t.Errorf("%d listed, want 80", total)
	}
	noErr(t, b.Store.Delete(t.Context(), b.Company, last.UUID))
	err = client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		if n := node.DBSize(ctx).Val(); n == 0 {
			t.Errorf("%v holds no key", node)
		}
		return nil
	})
	noErr(t, err)
}
