package publish_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/internal/redistest"
	"spendhook/internal/redisx"
)

// One batch has events in slots of all nodes of a cluster. Each node loads the scripts that it
// lacks.
func TestOnCluster(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { waitForDialers(t) })
	acceptAndListManyCompanies(t, redistest.Cluster(t, 3)[0].ClusterClient())
}

// Accept and list on the embedded Redis, for machines without redis-server.
func TestInMemory(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r, err := redisx.Open(t.Context(), redisx.Options{DataDir: t.TempDir(), AllowMemory: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	options := *r.Client().(*redis.Client).Options()
	options.ReadTimeout, options.ContextTimeoutEnabled = time.Minute, false // it is slow, and the machine may be busy
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	acceptAndListManyCompanies(t, client)
}

func acceptAndListManyCompanies(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	b := setupOn(t, client, func(*options) {})
	var batch []events.Event
	var first, again []string
	for i := range 100 {
		e := newEvent("e")
		e.CompanyUUID = uuid.UUID{byte(i), 7}
		batch = append(batch, e)
		first, again = append(first, "ACCEPTED"), append(again, "DUPLICATE")
	}
	want(t, "first", b.Accept(t, batch...), first...)
	want(t, "again", b.Accept(t, batch...), again...)
	seen := 0
	for f := (history.Filter{Size: 30}); ; {
		p, err := b.Reader.List(t.Context(), f)
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
