package registry_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/expression"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

func TestRegistryFollowsEveryChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.Registry()
	expect := func(what string, want ...string) {
		t.Helper()
		all, err := subscribersAt(t.Context(), r, b.Company, b.Version(t))
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
	first := b.Create(t, z)
	expect("one", z)
	b.Advance(time.Second)
	b.Create(t, a)
	expect("two, oldest first", z, a)
	_, err := b.Store.Update(t.Context(), b.Company, first.UUID, subscribers.Settings{Enabled: new(false)})
	noErr(t, err)
	expect("one disabled", a)
	_, err = b.Store.RemoveEvent(t.Context(), b.Company, a, "PAYMENT_PAID")
	noErr(t, err)
	expect("the other lists other events")
	all, _, err := b.Registry().List(t.Context(), registry.Filter{Company: &b.Company})
	noErr(t, err)
	for _, s := range all {
		noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	}
	expect("all deleted")
	b.Create(t, a)
	expect("one again", a)
}

// subscribersAt is SubscribersOf for one company.
func subscribersAt(ctx context.Context, r *registry.Registry, company uuid.UUID, version int64) ([]*subscribers.Subscriber, error) {
	loaded := r.SubscribersOf(ctx, registry.CompanyVersion{Company: company, Version: version})[0]
	return loaded.Subscribers, loaded.Err
}

func TestRegistryGivesSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	all, err := subscribersAt(t.Context(), b.Registry(), b.Company, b.Version(t))
	noErr(t, err)
	if got := subscriberstest.LiveSecrets(all[0], b.Now()); len(got) != 1 || got[0] != s.Secrets[0].Key {
		t.Errorf("%d secrets", len(got))
	}
}

// With the version of the copy, the registry makes no round trip, and no allocation but its answer.
func TestCopyOfTheVersionCostsNothing(t *testing.T) { // not parallel: it counts allocations
	b := setup(t)
	r := b.Registry()
	b.Create(t, "https://example.com/")
	v := b.Version(t)
	_, err := subscribersAt(t.Context(), r, b.Company, v)
	noErr(t, err)
	loads := b.loadsOf()
	allocs := testing.AllocsPerRun(1000, func() {
		if all, err := subscribersAt(t.Context(), r, b.Company, v); err != nil || len(all) != 1 {
			t.Fatalf("%d subscribers, %v", len(all), err)
		}
	})
	if allocs > 1 {
		t.Errorf("%v allocations", allocs)
	}
	if n := len(loads()); n != 0 {
		t.Errorf("%d round trips", n)
	}
	_, err = subscribersAt(t.Context(), r, b.Company, v+1)
	noErr(t, err)
	if len(loads()) == 0 {
		t.Error("another version was not loaded")
	}
}

// loadsOf collects how many companies each round trip of a registry loads.
func (b *bundle) loadsOf() (loads func() []int) {
	var mu sync.Mutex
	var all []int
	b.Redis.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		if cmds[0].Name() == "hgetall" { // else a connection is set up
			mu.Lock()
			all = append(all, len(cmds))
			mu.Unlock()
		}
		return next(ctx, cmds)
	}})
	return func() []int {
		mu.Lock()
		defer mu.Unlock()
		defer func() { all = nil }()
		return all
	}
}

// companies makes n companies with some subscribers each.
func (b *bundle) companies(t *testing.T, n, each int) []registry.CompanyVersion {
	t.Helper()
	all := make([]registry.CompanyVersion, n)
	for i := range all {
		b.Company = uuid.New()
		for k := range each {
			b.Create(t, fmt.Sprintf("https://hooks.example.com/companies/%d/%d", i, k))
		}
		all[i] = registry.CompanyVersion{Company: b.Company, Version: b.Version(t)}
	}
	return all
}

func TestMissingCompaniesAreLoadedTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	wanted := b.companies(t, 200, 1)
	loads, r := b.loadsOf(), b.Registry()
	expect := func(what string, wanted []registry.CompanyVersion, want ...int) {
		t.Helper()
		for i, loaded := range r.SubscribersOf(t.Context(), wanted...) {
			noErr(t, loaded.Err)
			if n := len(loaded.Subscribers); n != 1 || loaded.Subscribers[0].CompanyUUID != wanted[i].Company {
				t.Fatalf("%s: %d subscribers of company %d, or another's", what, n, i)
			}
		}
		if got := loads(); !slices.Equal(got, want) {
			t.Errorf("%s: round trips for %v companies, want %v", what, got, want)
		}
	}
	expect("some", wanted[:3], 3)
	expect("the same", wanted[:3])
	expect("some more, some twice", append(wanted[:5:5], wanted[:5]...), 2)
	b.Company = wanted[1].Company
	id := b.all(t)[0].UUID
	_, err := b.Store.Update(t.Context(), b.Company, id, subscribers.Settings{Name: new("Other")})
	noErr(t, err)
	wanted[1].Version = b.Version(t)
	loads() // of the look-up of the id
	expect("one that changed", wanted[:5], 1)
	expect("many", wanted, 128, 67)
	if got := r.SubscribersOf(t.Context(), registry.CompanyVersion{Company: uuid.New()}); len(got) != 1 || got[0].Err != nil || len(got[0].Subscribers) != 0 {
		t.Errorf("a company without subscribers: %+v", got)
	}
}

func (b *bundle) all(t *testing.T) []*subscribers.Subscriber {
	t.Helper()
	all, err := subscribersAt(t.Context(), b.Registry(), b.Company, b.Version(t))
	noErr(t, err)
	return all
}

// A company that cannot be read does not affect others. A damaged subscriber does not affect
// the others of its company.
func TestDamagedSubscriberFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	wanted := b.companies(t, 4, 2)
	unreadable, certificate, record := wanted[1], wanted[2], wanted[3]
	noErr(t, b.Redis.Set(t.Context(), layout.CompanyKey(unreadable.Company), "x", 0).Err())
	noErr(t, b.Redis.HSet(t.Context(), layout.CompanyKey(certificate.Company), "c", `{"chain":"nothing"}`).Err())
	b.Company = record.Company
	damaged := b.all(t)[0]
	for _, raw := range []string{`{"secrets":[{"key":"hunter2`, `{}`, `null`, ""} {
		noErr(t, b.Redis.HSet(t.Context(), layout.CompanyKey(record.Company), damaged.UUID.String(), raw).Err())
		all := b.Registry().SubscribersOf(t.Context(), wanted...)
		usable := make([]int, len(wanted))
		for i, loaded := range all {
			if (loaded.Err != nil) != (wanted[i] == unreadable) {
				t.Errorf("company %d: %v", i, loaded.Err)
			}
			for _, s := range loaded.Subscribers {
				if s.Unusable() == nil {
					usable[i]++
				}
			}
		}
		if want := []int{2, 0, 0, 1}; !slices.Equal(usable, want) || len(all[0].Subscribers) != 2 {
			t.Errorf("with %q: %v usable, want %v", raw, usable, want)
		}
		i := slices.IndexFunc(all[3].Subscribers, func(s *subscribers.Subscriber) bool { return s.UUID == damaged.UUID })
		if i < 0 || !all[3].Subscribers[i].Enabled || !errors.Is(all[3].Subscribers[i].Unusable(), subscribers.ErrLocked) {
			t.Fatalf("with %q: the damaged one is %d of %d", raw, i, len(all[3].Subscribers))
		}
		if err := all[3].Subscribers[i].Unusable(); strings.Contains(err.Error(), "hunter2") {
			t.Error(err)
		}
	}

	items, total, err := b.Registry().List(t.Context(), registry.Filter{Company: &record.Company})
	noErr(t, err)
	if len(items) != 1 || total != 2 {
		t.Errorf("%d of %d listed, want 1 of 2", len(items), total)
	}
	noErr(t, b.Store.Delete(t.Context(), record.Company, damaged.UUID))
	b.Create(t, damaged.CallbackURL)
}

// The bound limits the growth of the heap.
func TestRegistryIsBoundedInBytes(t *testing.T) { // not parallel: it measures the heap
	const limit = 2 << 20
	for what, test := range map[string]struct {
		companies, subscribers int
		certificate, own       bool
	}{
		"subscribers":                 {2000, 3, false, false},
		"certificates":                {600, 1, true, false},
		"certificates of subscribers": {300, 2, false, true},
	} {
		t.Run(what, func(t *testing.T) {
			b := setup(t)
			wanted := b.companies(t, test.companies, test.subscribers)
			if test.certificate {
				certificates := certificate.New(certificate.Options{Client: b.Redis, Keyring: sealtest.Keyring(), Now: b.Now})
				in := subscriberstest.ClientCertificate(t, b.Now())
				for i, w := range wanted {
					_, err := certificates.Set(t.Context(), w.Company, in)
					noErr(t, err)
					b.Company = w.Company
					wanted[i].Version = b.Version(t)
				}
			}
			if test.own {
				b.ownCertificates(t, wanted)
			}
			r := registry.New(b.Redis, sealtest.Keyring(), limit)
			loads, before := b.loadsOf(), heapInUse()
			for _, loaded := range r.SubscribersOf(t.Context(), wanted...) {
				noErr(t, loaded.Err)
			}
			got := heapInUse() - before
			if got < limit*17/20 || got > limit*23/20 {
				t.Errorf("the heap has grown by %d bytes, want %d or nearly so", got, limit)
			}
			loads()
			kept := 0
			for _, w := range slices.Backward(wanted) {
				_, err := subscribersAt(t.Context(), r, w.Company, w.Version)
				noErr(t, err)
				if len(loads()) > 0 {
					break
				}
				kept++
			}
			t.Logf("%d companies kept, %d bytes each", kept, got/max(kept, 1))
			if kept < 100 || kept == len(wanted) {
				t.Errorf("%d of the companies used last are kept", kept)
			}
		})
	}
}

// What is compiled of a copy counts, also before it is compiled.
func TestExpressionsCountInTheMemoryOfCopies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	filter, key := `id.matches("[a-z]+")`, `"`+strings.Repeat("k", 1000)+`" + id`
	wanted := b.companies(t, 20, 1)
	for i, w := range wanted {
		all, err := b.Registry().Current(t.Context(), w.Company)
		noErr(t, err)
		_, err = b.Store.Update(t.Context(), w.Company, all[0].UUID, subscribers.Settings{Filter: &filter, OrderedBy: &key})
		noErr(t, err)
		b.Company = w.Company
		wanted[i].Version = b.Version(t)
	}
	r := registry.New(b.Redis, sealtest.Keyring(), int64(5*(expression.Bytes(filter)+expression.Bytes(key))))
	for _, loaded := range r.SubscribersOf(t.Context(), wanted...) {
		noErr(t, loaded.Err)
	}
	loads := b.loadsOf()
	for i, w := range slices.Backward(wanted) {
		_, err := subscribersAt(t.Context(), r, w.Company, w.Version)
		noErr(t, err)
		if len(loads()) == 0 {
			continue
		}
		if kept := len(wanted) - 1 - i; kept < 1 || kept > 4 {
			t.Errorf("%d copies are kept", kept)
		}
		return
	}
	t.Error("all copies are kept")
}

// ownCertificates gives each subscriber a certificate of its own and an OAuth.
func (b *bundle) ownCertificates(t *testing.T, wanted []registry.CompanyVersion) {
	t.Helper()
	certificates := certificate.New(certificate.Options{Client: b.Redis, Keyring: sealtest.Keyring(), Now: b.Now})
	in := subscriberstest.ClientCertificate(t, b.Now())
	for i, w := range wanted {
		all, err := b.Registry().Current(t.Context(), w.Company)
		noErr(t, err)
		for _, s := range all {
			_, err := certificates.Of(s.UUID).Set(t.Context(), w.Company, in)
			noErr(t, err)
			_, err = b.Store.Update(t.Context(), w.Company, s.UUID, subscribers.Settings{OAuth: &callback.OAuthChange{
				TokenURL: new("https://example.com/token"), ClientID: new("us"), ClientSecret: new(secret.Text("p")),
				Scope: new(strings.Repeat("s", 1000)), Audience: new(strings.Repeat("a", 2000)),
			}})
			noErr(t, err)
		}
		b.Company = w.Company
		wanted[i].Version = b.Version(t)
	}
}

func TestReloadedCompanyReplacesItsCopy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	wanted := b.companies(t, 2, 1)
	r := registry.New(b.Redis, sealtest.Keyring(), 16<<10)
	again := wanted[1]
	again.Version++ // never found
	r.SubscribersOf(t.Context(), wanted...)
	for range 100 {
		r.SubscribersOf(t.Context(), again)
	}
	loads := b.loadsOf()
	if r.SubscribersOf(t.Context(), wanted...); len(loads()) != 0 {
		t.Error("the other one was dropped")
	}
}

func heapInUse() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what pools held goes with the second
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Invariant 7: a change that was answered before the version was read is in the copy.
func TestRegistrySeesEveryAnsweredChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.Registry()
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			url := fmt.Sprintf("https://example.com/%d", w)
			s, err := b.Store.Create(t.Context(), b.Company, b.Settings(url))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 40 {
				name := fmt.Sprintf("Name %d", i)
				if _, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: &name}); err != nil {
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

func (b *bundle) registeredName(t *testing.T, r *registry.Registry, id uuid.UUID) string {
	t.Helper()
	all, err := r.Current(t.Context(), b.Company)
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

// After a restore from a backup, a copy with a newer version is not used.
func TestRegistryFollowsARestoredBackup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.Registry()
	s := b.Create(t, "https://example.com/")
	key := layout.CompanyKey(b.Company)
	backup, old := b.Redis.HGetAll(t.Context(), key).Val(), b.Version(t)
	_, err := b.Store.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: new("Lost")})
	noErr(t, err)
	if got := b.registeredName(t, r, s.UUID); got != "Lost" {
		t.Fatalf("name %q", got)
	}
	noErr(t, b.Redis.HSet(t.Context(), key, backup).Err())
	if got := b.registeredName(t, r, s.UUID); got != "Payments" || b.Version(t) != old {
		t.Errorf("name %q", got)
	}
}

func BenchmarkLoadOf100Subscribers(bench *testing.B) {
	b := subscriberstest.New(bench, subscribers.StoreOptions{})
	for i := range 100 {
		b.Create(bench, fmt.Sprintf("https://example.com/%d", i))
	}
	r := b.Registry()
	for version := int64(1); bench.Loop(); version++ {
		if _, err := subscribersAt(bench.Context(), r, b.Company, version); err != nil {
			bench.Fatal(err)
		}
	}
}

// A company without a copy is loaded once, however many turns wait for it. The end of one
// caller's context does not end the load.
func TestTurnsOfOneCompanyShareItsLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer, loads := make(chan struct{}), 0
		client := redis.NewClient(&redis.Options{Addr: "never-dialled:0"})
		defer client.Close()
		client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
			loads += len(cmds)
			<-answer
			for _, cmd := range cmds {
				cmd.(*redis.MapStringStringCmd).SetVal(map[string]string{"v": "7"})
				cmd.SetErr(ctx.Err())
			}
			return ctx.Err()
		}})
		r := registry.New(client, sealtest.Keyring(), 0)
		company, errs := uuid.New(), make([]error, 1000)
		first, cancel := context.WithCancel(t.Context())
		for i := range errs {
			ctx := t.Context()
			if i == 0 {
				ctx = first
			}
			version := 7 - int64(i%2) // some turns have read an earlier version
			go func() {
				errs[i] = r.SubscribersOf(ctx, registry.CompanyVersion{Company: company, Version: version}, registry.CompanyVersion{Company: company, Version: 7})[0].Err
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		close(answer)
		synctest.Wait()
		if loads != 1 {
			t.Errorf("%d loads", loads)
		}
		for i, err := range errs {
			if want := i == 0; errors.Is(err, context.Canceled) != want || (err != nil) != want {
				t.Errorf("caller %d got %v", i, err)
			}
		}
	})
}
