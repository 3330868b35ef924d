package signingkey_test

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/signingkey"
	"spendhook/subscribers/subscriberstest"
	"spendhook/subscribers/vault"
)

func TestMain(m *testing.M) { redistest.Main(m) }

type bundle struct {
	*subscriberstest.Bundle

	keys *signingkey.Store
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{Bundle: subscriberstest.New(t, subscribers.StoreOptions{})}
	b.keys = b.storeWith(sealtest.Keyring())
	return b
}

// storeWith is another store on the bundle's database.
func (b *bundle) storeWith(keys *seal.Keyring) *signingkey.Store {
	return signingkey.New(b.Redis, keys)
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSigningKeyIsOneForAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.Create(t, "https://example.com/")
	keys := make([]string, 20)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			replica := signingkey.New(b.Redis, sealtest.Keyring())
			key, err := replica.Key(t.Context(), b.Company)
			if err != nil {
				t.Error(err)
			}
			keys[i] = string(key)
		})
	}
	wg.Wait()
	noErr(t, b.Store.Delete(t.Context(), b.Company, s.UUID))
	after, err := b.keys.Key(t.Context(), b.Company)
	noErr(t, err)
	for _, key := range keys {
		if len(key) != 64 || key != string(after) {
			t.Fatal("two replicas have two keys")
		}
	}
}

func TestSigningKeysDiffer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Create(t, "https://example.com/")
	one, err := b.keys.Key(t.Context(), b.Company)
	noErr(t, err)
	b.Company = uuid.New()
	b.Create(t, "https://example.com/")
	two, err := b.keys.Key(t.Context(), b.Company)
	noErr(t, err)
	if one.Equal(two) {
		t.Error("two companies have one key")
	}
}

// Anyone may ask for a public key: a request for an unknown company must not use memory.
func TestSigningKeyOfUnknownCompanyIsNotMade(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.keys.Key(t.Context(), uuid.New())
	if !errors.Is(err, signingkey.ErrNotFound) {
		t.Errorf("error = %v", err)
	}
	if n := b.Redis.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestSigningKeysAreSealed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Create(t, "https://example.com/")
	key, err := b.keys.Key(t.Context(), b.Company)
	noErr(t, err)
	var name string
	for _, k := range b.Redis.Keys(t.Context(), "*wk:*").Val() {
		name = k
	}
	if stored := b.Redis.Get(t.Context(), name).Val(); !seal.IsSealed(stored) || strings.Contains(stored, string(key.Seed())) {
		t.Errorf("the key is stored in clear")
	}
	again, err := b.storeWith(sealtest.Keyring()).Key(t.Context(), b.Company)
	noErr(t, err)
	if !again.Equal(key) {
		t.Error("another key was read")
	}
}

func TestALockedSigningKeyIsAnErrorThatNamesTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Create(t, "https://example.com/")
	_, err := b.keys.Key(t.Context(), b.Company)
	noErr(t, err)
	_, err = b.storeWith(sealtest.Ring("another")).Key(t.Context(), b.Company)
	if !errors.Is(err, vault.ErrLocked) || !strings.Contains(err.Error(), "test") {
		t.Errorf("%v, want ErrLocked that names the key", err)
	}
}

func TestResealBringsEveryKeyUnderTheCurrentOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.storeWith(sealtest.Ring("old"))
	keys := map[uuid.UUID]string{}
	for range 3 {
		b.Company = uuid.New()
		b.Create(t, "https://example.com/")
		key, err := old.Key(t.Context(), b.Company)
		noErr(t, err)
		keys[b.Company] = string(key)
	}

	var lost reseal.Count
	noErr(t, b.storeWith(sealtest.Ring("new")).Reseal(t.Context(), &lost))
	if want := map[string]int{"old": 3}; !maps.Equal(lost.Left, want) || lost.Resealed != 0 {
		t.Errorf("without the old key: %+v, want %v left", lost, want)
	}
	var count, again reseal.Count
	both := b.storeWith(sealtest.Ring("new", "old"))
	noErr(t, both.Reseal(t.Context(), &count))
	noErr(t, both.Reseal(t.Context(), &again))
	if count.Resealed != 3 || len(count.Left) != 0 || again.Resealed != 0 {
		t.Errorf("%+v, want 3 resealed; then %+v", count, again)
	}
	fresh := b.storeWith(sealtest.Ring("new"))
	for company, want := range keys {
		key, err := fresh.Key(t.Context(), company)
		noErr(t, err)
		if string(key) != want {
			t.Error("another key was read")
		}
	}
}
