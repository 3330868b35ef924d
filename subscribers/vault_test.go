package subscribers_test

import (
	"errors"
	"strings"
	"testing"

	"spendhook/internal/seal"
	"spendhook/internal/seal/sealtest"
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

// withKeys is another store on the bundle's database.
func (b *bundle) withKeys(keys *seal.Keyring) *subscribers.Store {
	return subscribers.NewStore(subscribers.StoreOptions{Client: b.Redis, Now: b.Now, Keyring: keys})
}

func (b *bundle) raw(t *testing.T, s subscribers.Subscriber) string {
	t.Helper()
	raw, err := b.Redis.HGet(t.Context(), layout.CompanyKey(b.Company), s.UUID.String()).Result()
	noErr(t, err)
	return raw
}

// A secret stored in clear text is refused: only values that were sealed for their place are accepted.
func TestClearTextDoesNotOpen(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	s := b.Create(t, "https://example.com/")
	inClear := `{"name":"N","callbackUrl":"https://example.com/","events":["A"],"enabled":true,"createdAt":"2026-01-01T00:00:00Z","updatedAt":"2026-01-01T00:00:00Z","secrets":[{"key":"whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}]}`
	noErr(t, b.Redis.HSet(t.Context(), layout.CompanyKey(b.Company), s.UUID.String(), inClear).Err())
	read, err := b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if got := subscriberstest.LiveSecrets(&read, b.Now()); len(got) > 0 {
		t.Errorf("%d secrets", len(got))
	}
}

func TestSubscriberWithoutItsKeyIsUnusable(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	in := b.Settings("https://example.com/")
	in.Headers = map[string]*secret.Text{"Authorization": new(secret.Text("Bearer hunter22"))}
	s, err := b.Store.Create(t.Context(), b.Company, in)
	noErr(t, err)
	other := b.withKeys(sealtest.Ring("another"))

	read, err := other.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	err = read.Unusable()
	if !errors.Is(err, seal.ErrUnknownKey) || !strings.Contains(err.Error(), "test") {
		t.Errorf("%v, want ErrUnknownKey that names the key", err)
	}
	if len(subscriberstest.LiveSecrets(&read, b.Now())) != 0 || read.Headers[0].Value != "" {
		t.Error("a locked secret has a value")
	}
	matched, err := registry.New(b.Redis, sealtest.Ring("another"), 0).Current(t.Context(), b.Company)
	noErr(t, err)
	if len(matched) != 1 || matched[0].Unusable() == nil {
		t.Error("the registry does not say so")
	}

	// A change of something else, by a daemon that cannot open them, keeps them.
	_, err = other.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Name: new("Renamed")})
	noErr(t, err)
	read, err = b.Store.Get(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	if read.Name != "Renamed" || read.Unusable() != nil || read.Secrets[0].Key != s.Secrets[0].Key || read.Headers[0].Value != "Bearer hunter22" {
		t.Errorf("after the change: %v, secrets changed", read.Unusable())
	}

	// A new secret and a new value make it usable without the lost key.
	_, err = other.RotateSecret(t.Context(), b.Company, s.UUID)
	noErr(t, err)
	healed, err := other.Update(t.Context(), b.Company, s.UUID, subscribers.Settings{Headers: map[string]*secret.Text{"authorization": new(secret.Text("Bearer fresh1"))}})
	noErr(t, err)
	if healed.Unusable() != nil || len(healed.Secrets) != 1 {
		t.Errorf("after a rotation: %v, %d secrets", healed.Unusable(), len(healed.Secrets))
	}
}

func TestASealedSecretOpensForItsOwnSubscriberOnly(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	one, two := b.Create(t, "https://example.com/1"), b.Create(t, "https://example.com/2")
	noErr(t, b.Redis.HSet(t.Context(), layout.CompanyKey(b.Company), two.UUID.String(), b.raw(t, one)).Err())
	moved, err := b.Store.Get(t.Context(), b.Company, two.UUID)
	noErr(t, err)
	if !errors.Is(moved.Unusable(), seal.ErrDamaged) {
		t.Errorf("%v, want ErrDamaged", moved.Unusable())
	}
}

func TestWithoutAKeyringNothingIsWritten(t *testing.T) {
	t.Parallel()
	b := setup(t, subscribers.StoreOptions{})
	if _, err := b.withKeys(nil).Create(t.Context(), b.Company, b.Settings("https://example.com/")); err == nil {
		t.Error("a subscriber was stored without an encryption key")
	}
	if keys := b.Redis.Keys(t.Context(), "*").Val(); len(keys) != 0 {
		t.Errorf("written: %v", keys)
	}
}
