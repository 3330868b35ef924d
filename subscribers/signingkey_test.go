package subscribers_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/internal/seal"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
)

// signingKeys reads the keys of the company.
func (b *bundle) signingKeys(t *testing.T) []subscribers.SigningKey {
	t.Helper()
	keys, err := b.Store.SigningKeys(t.Context(), b.Company)
	noErr(t, err)
	return keys
}

// signing is the id of the key of an algorithm that signs.
func (b *bundle) signing(t *testing.T, a subscribers.KeyAlgorithm) string {
	t.Helper()
	for _, k := range b.signingKeys(t) {
		if k.Algorithm == a && k.State == subscribers.KeySigning {
			return k.ID
		}
	}
	t.Fatalf("no key of %s signs", a)
	return ""
}

// states lists the keys of an algorithm: their ids with their states.
func (b *bundle) states(t *testing.T, a subscribers.KeyAlgorithm) (out []string) {
	t.Helper()
	for _, k := range b.signingKeys(t) {
		if k.Algorithm == a {
			out = append(out, k.ID+" "+string(k.State))
		}
	}
	return out
}

// Concurrent creates and later ones leave the company with one key, also after its last
// subscriber was deleted.
func TestSigningKeyIsOneForAll(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	all := make([]subscribers.Subscriber, 20)
	keys := make([]string, len(all))
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			all[i] = b.Create(t, "https://example.com/"+uuid.NewString())
			keys[i] = b.signing(t, subscribers.Ed25519)
		})
	}
	wg.Wait()
	matched, err := b.Registry().Current(t.Context(), b.Company)
	noErr(t, err)
	loaded, err := matched[0].SigningKeys.Signing(subscribers.Ed25519)
	noErr(t, err)
	for _, s := range all {
		noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	}
	keys = append(keys, loaded.ID, b.signing(t, subscribers.Ed25519))
	for _, key := range keys {
		if key == "" || key != keys[0] {
			t.Fatal("two replicas have two keys")
		}
	}
}

func TestSigningKeysDiffer(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	one := b.signing(t, subscribers.ES256)
	b.Company = uuid.New()
	b.Create(t, "https://example.com/")
	if two := b.signing(t, subscribers.ES256); one == two {
		t.Error("two companies have one key")
	}
}

// Anyone may ask for a public key: a request for an unknown company must not use memory.
func TestSigningKeyOfUnknownCompanyIsNotMade(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	_, err := b.Store.SigningKeys(t.Context(), uuid.New())
	wantErr(t, err, subscribers.ErrNoSigningKey)
	if n := b.Redis.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestSigningKeysAreSealed(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	stored := b.Redis.HGet(t.Context(), layout.CompanyKey(b.Company), layout.SigningKeysField).Val()
	if !seal.IsSealed(stored) || strings.Contains(stored, "alg") {
		t.Errorf("the keys are stored in clear")
	}
}

// Keys whose encryption key is lost are replaced by a rotation, and by nothing else.
func TestLockedSigningKeysAreReplaced(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	before := b.signingKeys(t)
	b.Store = b.withKeys(sealtest.Ring("another"))
	wantErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, before[0].ID), subscribers.ErrLocked)
	after, err := b.Store.RotateSigningKeys(t.Context(), b.Company)
	noErr(t, err)
	if len(after) != 4 || after[0].State != subscribers.KeySigning || after[0].ID == before[0].ID || after[0].ID == before[1].ID {
		t.Errorf("%+v, then %+v", before, after)
	}
	if got := b.signingKeys(t); !reflect.DeepEqual(got, after) {
		t.Errorf("%+v stored, %+v returned", got, after)
	}
}

func TestALockedSigningKeyIsAnErrorThatNamesTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	_, err := b.withKeys(sealtest.Ring("another")).SigningKeys(t.Context(), b.Company)
	matched, failed := registry.New(b.Redis, sealtest.Ring("another"), 0).Current(t.Context(), b.Company)
	noErr(t, failed)
	_, failed = matched[0].SigningKeys.Signing(subscribers.Ed25519)
	for _, err := range []error{err, failed} {
		if !errors.Is(err, subscribers.ErrLocked) || !strings.Contains(err.Error(), "test") {
			t.Errorf("%v, want ErrLocked that names the key", err)
		}
	}
}

// After a rotation the key signs that was published before, and the former one stays published for a day.
func TestSigningKeysRotate(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	for _, a := range []subscribers.KeyAlgorithm{subscribers.Ed25519, subscribers.ES256} {
		if got := b.states(t, a); len(got) != 2 || !strings.HasSuffix(got[0], " SIGNING") || !strings.HasSuffix(got[1], " NEXT") {
			t.Fatalf("first keys %q", got)
		}
	}
	_, err := b.Store.RotateSigningKeys(t.Context(), b.Company)
	wantErr(t, err, subscribers.ErrRotatedRecently) // receivers may not know the next key
	first := b.signingKeys(t)
	version := b.Version(t)
	b.Advance(10 * time.Minute)
	returned, err := b.Store.RotateSigningKeys(t.Context(), b.Company)
	noErr(t, err)
	got := b.signingKeys(t)
	if !reflect.DeepEqual(returned, got) || len(got) != 6 {
		t.Fatalf("%+v returned, %+v stored", returned, got)
	}
	for i := range first {
		k, want := got[i+i/2], []subscribers.KeyState{subscribers.KeyRetired, subscribers.KeySigning}[i%2]
		if k.ID != first[i].ID || k.State != want || (want == subscribers.KeyRetired) != k.RetiresAt.Equal(b.Now().Add(24*time.Hour)) {
			t.Errorf("%s is %s until %v, want %s", first[i].ID, k.State, k.RetiresAt, want)
		}
	}
	if b.Version(t) == version {
		t.Error("replicas keep the former keys")
	}
	for range 3 {
		b.Advance(10 * time.Minute)
		_, err = b.Store.RotateSigningKeys(t.Context(), b.Company)
		noErr(t, err)
	}
	b.Advance(10 * time.Minute)
	_, err = b.Store.RotateSigningKeys(t.Context(), b.Company)
	wantErr(t, err, subscribers.ErrRotatedRecently) // four are retired
	b.Advance(24 * time.Hour)
	if got := b.states(t, subscribers.ES256); len(got) != 2 {
		t.Errorf("a day later %q", got)
	}
}

// A revoked key is gone at once, and the next one takes its place.
func TestChangesOfSigningKeysAreCounted(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := setup(t, subscribers.StoreOptions{Registerer: registry})
	b.Create(t, "https://example.com/")
	b.Advance(10 * time.Minute)
	keys, err := b.Store.RotateSigningKeys(t.Context(), b.Company)
	noErr(t, err)
	_, err = b.Store.RotateSigningKeys(t.Context(), b.Company)
	wantErr(t, err, subscribers.ErrRotatedRecently)
	noErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, keys[0].ID))
	noErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, keys[1].ID))
	wantErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, keys[1].ID), subscribers.ErrNoSigningKey)
	want := "# HELP spendhook_signing_key_changes_total Changes of the signing keys of companies: all keys of a company rotated, or one revoked.\n" +
		"# TYPE spendhook_signing_key_changes_total counter\nspendhook_signing_key_changes_total{change=\"revoked\"} 2\nspendhook_signing_key_changes_total{change=\"rotated\"} 1\n"
	noErr(t, testutil.GatherAndCompare(registry, strings.NewReader(want)))
}

func TestSigningKeyIsRevoked(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	before := b.signingKeys(t)
	noErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, before[0].ID))
	after := b.signingKeys(t)
	if len(after) != 4 || after[0].ID != before[1].ID || after[0].State != subscribers.KeySigning ||
		after[1].State != subscribers.KeyNext || after[1].ID == before[0].ID || after[2].ID != before[2].ID {
		t.Fatalf("%+v, then %+v", before, after)
	}
	wantErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, before[0].ID), subscribers.ErrNoSigningKey)
	noErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, after[1].ID)) // the next one
	if got := b.signingKeys(t); len(got) != 4 || got[0].ID != after[0].ID || got[1].ID == after[1].ID {
		t.Errorf("after the next one was revoked: %+v", got)
	}
	b.Advance(10 * time.Minute)
	_, err := b.Store.RotateSigningKeys(t.Context(), b.Company)
	noErr(t, err)
	noErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, after[0].ID)) // a retired one
	if got := b.states(t, subscribers.Ed25519); len(got) != 2 {
		t.Errorf("after the retired one was revoked: %q", got)
	}
}

// Rotations and revocations at the same time lose none of each other.
func TestSigningKeysChangeAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	first := b.signingKeys(t)
	var wg sync.WaitGroup
	for _, k := range first {
		wg.Go(func() { noErr(t, b.Store.RevokeSigningKey(t.Context(), b.Company, k.ID)) })
	}
	wg.Wait()
	for _, k := range b.signingKeys(t) {
		if slices.ContainsFunc(first, func(f subscribers.SigningKey) bool { return f.ID == k.ID }) {
			t.Errorf("%s came back", k.ID)
		}
	}
}

// The keys of a company are forgotten with its last subscriber only: deliveries of a new one are signed.
func TestForgetSigningKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	sub := b.Create(t, "https://example.com/1")
	noErr(t, b.Store.Forget(t.Context(), b.Company))
	_, err := b.Store.SigningKeys(t.Context(), b.Company)
	noErr(t, err)
	noErr(t, b.Store.Delete(t.Context(), b.Company, sub.UUID))
	before := b.Redis.HGet(t.Context(), layout.CompanyKey(b.Company), "v").Val()
	for range 2 {
		noErr(t, b.Store.Forget(t.Context(), b.Company))
	}
	_, err = b.Store.SigningKeys(t.Context(), b.Company)
	wantErr(t, err, subscribers.ErrNoSigningKey)
	if after := b.Redis.HGet(t.Context(), layout.CompanyKey(b.Company), "v").Val(); after <= before {
		t.Errorf("version %s after %s: replicas keep their copies", after, before)
	}
}
