package subscribers_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/seal"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
)

// signingKey reads the key of the company with an encryption key.
func (b *bundle) signingKey(t *testing.T, keys *seal.Keyring) string {
	t.Helper()
	stored, err := b.withKeys(keys).SigningKey(t.Context(), b.Company)
	noErr(t, err)
	key, err := stored.Open()
	noErr(t, err)
	return string(key)
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
			keys[i] = b.signingKey(t, sealtest.Keyring())
		})
	}
	wg.Wait()
	matched, err := b.Registry().Current(t.Context(), b.Company)
	noErr(t, err)
	loaded, err := matched[0].SigningKey.Open()
	noErr(t, err)
	for _, s := range all {
		noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	}
	keys = append(keys, string(loaded), b.signingKey(t, sealtest.Keyring()))
	for _, key := range keys {
		if len(key) != 64 || key != keys[0] {
			t.Fatal("two replicas have two keys")
		}
	}
}

func TestSigningKeysDiffer(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	one := b.signingKey(t, sealtest.Keyring())
	b.Company = uuid.New()
	b.Create(t, "https://example.com/")
	if two := b.signingKey(t, sealtest.Keyring()); one == two {
		t.Error("two companies have one key")
	}
}

// Anyone may ask for a public key: a request for an unknown company must not use memory.
func TestSigningKeyOfUnknownCompanyIsNotMade(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	_, err := b.Store.SigningKey(t.Context(), uuid.New())
	wantErr(t, err, subscribers.ErrNoSigningKey)
	if n := b.Redis.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestSigningKeysAreSealed(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	key := b.signingKey(t, sealtest.Keyring())
	stored := b.Redis.HGet(t.Context(), layout.CompanyKey(b.Company), layout.SigningKeyField).Val()
	if !seal.IsSealed(stored) || strings.Contains(stored, key[:32]) {
		t.Errorf("the key is stored in clear")
	}
}

func TestALockedSigningKeyIsAnErrorThatNamesTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.Create(t, "https://example.com/")
	stored, err := b.withKeys(sealtest.Ring("another")).SigningKey(t.Context(), b.Company)
	noErr(t, err)
	matched, err := registry.New(b.Redis, sealtest.Ring("another"), 0).Current(t.Context(), b.Company)
	noErr(t, err)
	for _, key := range []subscribers.SigningKey{stored, matched[0].SigningKey} {
		if _, err := key.Open(); !errors.Is(err, subscribers.ErrLocked) || !strings.Contains(err.Error(), "test") {
			t.Errorf("%v, want ErrLocked that names the key", err)
		}
	}
}
