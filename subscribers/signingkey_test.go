package subscribers_test

import (
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
)

func TestSigningKeyIsOneForAll(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.create(t, "https://example.com/")
	keys := make([]string, 20)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			replica := subscribers.NewStore(subscribers.StoreOptions{Client: b.client, Keyring: sealtest.Keyring()})
			key, err := replica.SigningKey(t.Context(), b.company)
			if err != nil {
				t.Error(err)
			}
			keys[i] = string(key)
		})
	}
	wg.Wait()
	noErr(t, b.store.Delete(t.Context(), b.company, s.UUID))
	after, err := b.store.SigningKey(t.Context(), b.company)
	noErr(t, err)
	for _, key := range keys {
		if len(key) != 64 || key != string(after) {
			t.Fatal("two replicas have two keys")
		}
	}
}

func TestSigningKeysDiffer(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	b.create(t, "https://example.com/")
	one, err := b.store.SigningKey(t.Context(), b.company)
	noErr(t, err)
	b.company = uuid.New()
	b.create(t, "https://example.com/")
	two, err := b.store.SigningKey(t.Context(), b.company)
	noErr(t, err)
	if one.Equal(two) {
		t.Error("two companies have one key")
	}
}

// The public keys are public: asking for made-up companies must cost no memory.
func TestSigningKeyOfNobodyIsNotMade(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	_, err := b.store.SigningKey(t.Context(), uuid.New())
	wantErr(t, err, subscribers.ErrNotFound)
	if n := b.client.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written", n)
	}
}
