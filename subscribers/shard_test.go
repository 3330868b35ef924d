package subscribers_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
)

// A shard that hangs costs its own companies, and no others, what they asked for.
func TestAShardThatHangsFailsAlone(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr()}, ReadTimeout: time.Minute, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { noErr(t, client.Close()) })
	b := &bundle{client: client, clock: newClock()}
	b.store = subscribers.NewStore(subscribers.StoreOptions{Client: client, Keyring: sealtest.Keyring(), Now: b.clock.Now})
	wanted := b.companies(t, 60, 1)
	samples, hangs, hanging := make([]subscribers.Sample, len(wanted)), make([]bool, len(wanted)), 0
	for i, w := range wanted {
		b.company = w.Company
		samples[i] = b.sample(*b.subscribers(t)[0], false, 4)
		master, err := client.MasterForKey(t.Context(), layout.CompanyKey(w.Company))
		noErr(t, err)
		if hangs[i] = master.Options().Addr == servers[1].Addr(); hangs[i] {
			hanging++
		}
	}
	if hanging == 0 || hanging == len(wanted) {
		t.Fatalf("%d of %d companies on one shard", hanging, len(wanted))
	}
	b.record(t, samples...) // connects to all, and makes the script known to them

	registry := registryOn(b.store)
	servers[1].Pause()
	defer servers[1].Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i, loaded := range registry.SubscribersOf(ctx, wanted...) {
		if failed := loaded.Err != nil; failed != hangs[i] {
			t.Errorf("company %d, hanging %v: %v", i, hangs[i], loaded.Err)
		}
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i, transition := range b.store.RecordHealth(ctx, samples, subscribers.HealthPolicy{}) {
		if failed := transition.Err != nil; failed != hangs[i] {
			t.Errorf("sample %d, hanging %v: %v", i, hangs[i], transition.Err)
		}
	}
}

// A sample that fails leaves alone the others of its call.
func TestASampleFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	bad, good := b.create(t, "https://example.com/1"), b.create(t, "https://example.com/2")
	b.record(t, b.sample(bad, false, 1))
	key := b.client.Keys(t.Context(), "*sh:"+bad.UUID.String()).Val()[0]
	noErr(t, b.client.Set(t.Context(), key, "x", 0).Err())
	for _, script := range []string{"known", "unknown"} {
		got := b.store.RecordHealth(t.Context(), []subscribers.Sample{b.sample(bad, false, 4), b.sample(good, false, 4)}, subscribers.HealthPolicy{})
		if got[0].Err == nil || got[0].Kind != subscribers.TransitionNone || got[1].Err != nil || got[1].Kind != subscribers.TransitionFailing {
			t.Errorf("with the script %s: transitions %+v", script, got)
		}
		b.record(t, b.sample(good, true, 0))
		noErr(t, b.client.ScriptFlush(t.Context()).Err())
	}
}
