package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"spendhook/auth"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
)

const testIssuer = "https://spendhook.test"

// memoryKeys is where keys are when a test has no database.
type memoryKeys struct {
	mu   sync.Mutex
	rows []storage.TokenKey
}

func (m *memoryKeys) TokenKeys(context.Context) ([]storage.TokenKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rows), nil
}

func (m *memoryKeys) ChangeTokenKeys(_ context.Context, decide func([]storage.TokenKey) ([]storage.TokenKey, error)) ([]storage.TokenKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows, err := decide(slices.Clone(m.rows))
	if err == nil {
		m.rows = rows
	}
	return slices.Clone(m.rows), err
}

// newKeys opens keys of their own.
func newKeys(tb testing.TB) *auth.Keys {
	tb.Helper()
	return openKeysIn(tb, tb.TempDir(), &memoryKeys{}, nil)
}

func openKeysIn(tb testing.TB, dir string, store auth.KeyStore, now func() time.Time) *auth.Keys {
	tb.Helper()
	keys, err := auth.OpenKeys(tb.Context(), auth.KeysOptions{Store: store, Keyring: sealtest.Keyring(), Dir: dir, Issuer: testIssuer, Now: now})
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// verifierOf accepts the tokens of keys.
func verifierOf(keys *auth.Keys) *auth.Verifier {
	return auth.NewVerifier(auth.VerifierOptions{Keys: keys})
}

// expired is a token of the house's keys that was good a minute ago.
func (h *house) expired() string {
	h.t.Helper()
	before := func() time.Time { return time.Now().Add(-2 * time.Minute) }
	keys := openKeysIn(h.t, h.t.TempDir(), h.keyRows, before)
	token, err := keys.Mint(h.t.Context(), auth.Grant{Company: &h.company, Scopes: strings.Fields(allScopes), TTL: time.Minute})
	if err != nil {
		h.t.Fatal(err)
	}
	return token
}
