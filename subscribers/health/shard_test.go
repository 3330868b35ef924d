package health_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/subscribers/health"
	"spendhook/subscribers/layout"
)

// A shard that hangs costs its own samples, and no others.
func TestAShardThatHangsFailsAlone(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr()}, ReadTimeout: time.Minute, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { noErr(t, client.Close()) })
	b := setupOn(client)
	samples, hangs, hanging := make([]health.Sample, 60), make([]bool, 60), 0
	for i := range samples {
		b.Company = uuid.New()
		s := b.Create(t, "https://example.com/")
		samples[i] = b.sample(s, false, 4)
		if h := b.health(t, s); h.State != health.StateHealthy { // a pipeline may span nodes
			t.Fatalf("health %+v", h)
		}
		_, _, err := b.healths.Troubled(t.Context(), b.Company)
		noErr(t, err)
		master, err := client.MasterForKey(t.Context(), layout.CompanyKey(b.Company))
		noErr(t, err)
		if hangs[i] = master.Options().Addr == servers[1].Addr(); hangs[i] {
			hanging++
		}
	}
	if hanging == 0 || hanging == len(samples) {
		t.Fatalf("%d of %d companies on one shard", hanging, len(samples))
	}
	for i, transition := range b.record(t, samples...) { // it makes the script known to all
		if transition.Kind != health.Failing {
			t.Errorf("sample %d: %s", i, transition.Kind)
		}
	}

	servers[1].Pause()
	defer servers[1].Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i, transition := range b.healths.Record(ctx, samples, health.Policy{}) {
		if failed := transition.Err != nil; failed != hangs[i] {
			t.Errorf("sample %d, hanging %v: %v", i, hangs[i], transition.Err)
		}
	}
}

// A failed sample does not affect the others of its call.
func TestFailedSampleFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad, good := b.Create(t, "https://example.com/1"), b.Create(t, "https://example.com/2")
	b.record(t, b.sample(bad, false, 1))
	key := b.Redis.Keys(t.Context(), "*sh:"+bad.UUID.String()).Val()[0]
	noErr(t, b.Redis.Set(t.Context(), key, "x", 0).Err())
	for _, script := range []string{"known", "unknown"} {
		got := b.healths.Record(t.Context(), []health.Sample{b.sample(bad, false, 4), b.sample(good, false, 4)}, health.Policy{})
		if got[0].Err == nil || got[0].Kind != health.None || got[1].Err != nil || got[1].Kind != health.Failing {
			t.Errorf("with the script %s: transitions %+v", script, got)
		}
		b.record(t, b.sample(good, true, 0))
		noErr(t, b.Redis.ScriptFlush(t.Context()).Err())
	}
}
