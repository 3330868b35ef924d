package events_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/redistest"
)

// One batch spans the slots of a cluster; each node gets the scripts it lacks.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { waitForDialers(t) })
	var addrs []string
	for _, s := range redistest.Cluster(t, 3) {
		addrs = append(addrs, s.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = client.Close() })
	acceptAndListManyCompanies(t, client)
}

// The embedded fallback, when no redis-server is found.
func TestOnMiniredis(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	acceptAndListManyCompanies(t, client)
}

func acceptAndListManyCompanies(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	b := setupOn(t, client, func(*events.PublisherOptions) {})
	var batch []events.Event
	var first, again []string
	for i := range 100 {
		e := newEvent("e")
		e.CompanyUUID = uuid.UUID{byte(i), 7}
		batch = append(batch, e)
		first, again = append(first, "ACCEPTED"), append(again, "DUPLICATE")
	}
	want(t, "first", b.accept(t, batch...), first...)
	want(t, "again", b.accept(t, batch...), again...)
	seen := 0
	for f := (events.Filter{Size: 30}); ; {
		p, err := b.store.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(p.Items)
		if f.Cursor = p.Next; f.Cursor == "" {
			break
		}
	}
	if seen != len(batch) {
		t.Errorf("listed %d of %d", seen, len(batch))
	}
}
