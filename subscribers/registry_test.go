package subscribers_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

func TestRegistryFollowsEveryChange(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	r := registryOn(b.store)
	expect := func(what string, want ...string) {
		t.Helper()
		all, err := r.Subscribers(t.Context(), b.company, b.version(t))
		noErr(t, err)
		var got []string
		for _, s := range all {
			if s.Enabled && s.Wants("PAYMENT_PAID") {
				got = append(got, s.CallbackURL)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	const a, z = "https://a.example/", "https://z.example/"
	expect("none yet")
	first := b.create(t, z)
	expect("one", z)
	b.clock.advance(1e6)
	b.create(t, a)
	expect("two, oldest first", z, a)
	_, err := b.store.Update(t.Context(), b.company, first.UUID, subscribers.Update{Enabled: new(false)})
	noErr(t, err)
	expect("one disabled", a)
	noErr(t, b.store.RemoveEvent(t.Context(), b.company, a, "PAYMENT_PAID"))
	expect("the other wants no more")
	all, _, err := b.store.List(t.Context(), subscribers.Filter{Company: &b.company})
	noErr(t, err)
	for _, s := range all {
		noErr(t, b.store.Delete(t.Context(), b.company, s.UUID))
	}
	expect("all deleted")
	b.create(t, a)
	expect("one again", a)
}

func TestRegistryGivesSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	all, err := registryOn(b.store).Subscribers(t.Context(), b.company, b.version(t))
	noErr(t, err)
	if got := all[0].LiveSecrets(b.clock.Now()); len(got) != 1 || got[0] != s.Secrets[0].Key {
		t.Errorf("%d secrets", len(got))
	}
}

// With the version of the copy, the registry asks nobody and makes nothing.
func TestACopyOfTheVersionIsFree(t *testing.T) { // not parallel: it counts allocations
	b := setup(t, subscribers.StoreOptions{})
	r := registryOn(b.store)
	b.create(t, "https://example.com/")
	v := b.version(t)
	_, err := r.Subscribers(t.Context(), b.company, v)
	noErr(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	allocs := testing.AllocsPerRun(1000, func() {
		if all, err := r.Subscribers(gone, b.company, v); err != nil || len(all) != 1 {
			t.Fatalf("%d subscribers, %v", len(all), err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
	if _, err := r.Subscribers(gone, b.company, v+1); err == nil {
		t.Error("another version was not loaded")
	}
}

func TestRegistryForgetsTheCompaniesUsedLeast(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	r := subscribers.NewRegistry(b.store, 2)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var companies []uuid.UUID
	var versions []int64
	for range 3 {
		b.company = uuid.New()
		b.create(t, "https://example.com/")
		companies, versions = append(companies, b.company), append(versions, b.version(t))
		_, err := r.Subscribers(t.Context(), b.company, b.version(t))
		noErr(t, err)
	}
	for i, company := range slices.Backward(companies) { // a miss loads, and pushes out another
		_, err := r.Subscribers(gone, company, versions[i])
		if kept := err == nil; kept != (i > 0) {
			t.Errorf("company %d is kept: %v", i, kept)
		}
	}
}

// Invariant 7: what was answered before the version was read is in the copy.
func TestRegistrySeesEveryAnsweredChange(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	r := registryOn(b.store)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			url := fmt.Sprintf("https://example.com/%d", w)
			s, err := b.store.Create(t.Context(), b.input(url))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 40 {
				name := fmt.Sprintf("Name %d", i)
				if _, err := b.store.Update(t.Context(), b.company, s.UUID, subscribers.Update{Name: &name}); err != nil {
					t.Error(err)
					return
				}
				if got := b.registeredName(t, r, s.UUID); got != name {
					t.Errorf("writer %d sees %q after %q was answered", w, got, name)
				}
			}
		})
	}
	wg.Wait()
}

func (b *bundle) registeredName(t *testing.T, r *subscribers.Registry, id uuid.UUID) string {
	t.Helper()
	v, err := b.client.HGet(t.Context(), subscribers.CompanyKey(b.company), subscribers.VersionField).Int64()
	if err != nil {
		t.Error(err)
	}
	all, err := r.Subscribers(t.Context(), b.company, v)
	if err != nil {
		t.Error(err)
	}
	for _, s := range all {
		if s.UUID == id {
			return s.Name
		}
	}
	return "(none)"
}

// A copy from the future of a restored backup is not kept for its version.
func TestRegistryFollowsARestoredBackup(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	r := registryOn(b.store)
	s := b.create(t, "https://example.com/")
	key := subscribers.CompanyKey(b.company)
	backup, old := b.client.HGetAll(t.Context(), key).Val(), b.version(t)
	_, err := b.store.Update(t.Context(), b.company, s.UUID, subscribers.Update{Name: new("Lost")})
	noErr(t, err)
	if got := b.registeredName(t, r, s.UUID); got != "Lost" {
		t.Fatalf("name %q", got)
	}
	noErr(t, b.client.HSet(t.Context(), key, backup).Err())
	if got := b.registeredName(t, r, s.UUID); got != "Payments" || b.version(t) != old {
		t.Errorf("name %q", got)
	}
}

func BenchmarkLoadOf100Subscribers(bench *testing.B) {
	b := &bundle{client: redistest.New(bench), clock: newClock(), company: uuid.New()}
	b.store = subscribers.NewStore(subscribers.StoreOptions{Client: b.client, Keyring: sealtest.Keyring()})
	for i := range 100 {
		if _, err := b.store.Create(bench.Context(), b.input(fmt.Sprintf("https://example.com/%d", i))); err != nil {
			bench.Fatal(err)
		}
	}
	r := registryOn(b.store)
	for version := int64(1); bench.Loop(); version++ {
		if _, err := r.Subscribers(bench.Context(), b.company, version); err != nil {
			bench.Fatal(err)
		}
	}
}
