package signingkey_test

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/signingkey"
	"spendhook/subscribers/vault"
)

func TestMain(m *testing.M) { redistest.Main(m) }

type bundle struct {
	client      redis.UniversalClient
	subscribers *subscribers.Store
	store       *signingkey.Store
	company     uuid.UUID
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{client: redistest.New(t), company: uuid.New()}
	b.subscribers = subscribers.NewStore(subscribers.StoreOptions{Client: b.client, Keyring: sealtest.Keyring()})
	b.store = b.storeWith(sealtest.Keyring())
	return b
}

// storeWith is another store on the bundle's database.
func (b *bundle) storeWith(keys *seal.Keyring) *signingkey.Store {
	return signingkey.New(b.client, keys)
}

// subscribe gives the company a subscriber.
func (b *bundle) subscribe(t *testing.T) subscribers.Subscriber {
	t.Helper()
	s, err := b.subscribers.Create(t.Context(), b.company, subscribers.Settings{
		Name: new("N"), CallbackURL: new("https://example.com/"), Events: new([]string{"A"}),
	})
	noErr(t, err)
	return s
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
	s := b.subscribe(t)
	keys := make([]string, 20)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			replica := signingkey.New(b.client, sealtest.Keyring())
			key, err := replica.Key(t.Context(), b.company)
			if err != nil {
				t.Error(err)
			}
			keys[i] = string(key)
		})
	}
	wg.Wait()
	noErr(t, b.subscribers.Delete(t.Context(), b.company, s.UUID))
	after, err := b.store.Key(t.Context(), b.company)
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
	b.subscribe(t)
	one, err := b.store.Key(t.Context(), b.company)
	noErr(t, err)
	b.company = uuid.New()
	b.subscribe(t)
	two, err := b.store.Key(t.Context(), b.company)
	noErr(t, err)
	if one.Equal(two) {
		t.Error("two companies have one key")
	}
}

// Anyone may ask for a public key: a request for an unknown company must not use memory.
func TestSigningKeyOfUnknownCompanyIsNotMade(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.store.Key(t.Context(), uuid.New())
	if !errors.Is(err, signingkey.ErrNotFound) {
		t.Errorf("error = %v", err)
	}
	if n := b.client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}

func TestSigningKeysAreSealed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t)
	key, err := b.store.Key(t.Context(), b.company)
	noErr(t, err)
	var name string
	for _, k := range b.client.Keys(t.Context(), "*wk:*").Val() {
		name = k
	}
	if stored := b.client.Get(t.Context(), name).Val(); !seal.IsSealed(stored) || strings.Contains(stored, string(key.Seed())) {
		t.Errorf("the key is stored in clear")
	}
	again, err := b.storeWith(sealtest.Keyring()).Key(t.Context(), b.company)
	noErr(t, err)
	if !again.Equal(key) {
		t.Error("another key was read")
	}
}

func TestALockedSigningKeyIsAnErrorThatNamesTheKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t)
	_, err := b.store.Key(t.Context(), b.company)
	noErr(t, err)
	_, err = b.storeWith(sealtest.Ring("another")).Key(t.Context(), b.company)
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
		b.company = uuid.New()
		b.subscribe(t)
		key, err := old.Key(t.Context(), b.company)
		noErr(t, err)
		keys[b.company] = string(key)
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
