package api

import (
	"context"
	"slices"
	"sync"
	"testing"

	"spendhook/auth"
	"spendhook/internal/seal/sealtest"
)

const testIssuer = "https://spendhook.test"

// memoryKeys is where keys are when a test has no database.
type memoryKeys struct {
	mu   sync.Mutex
	rows []auth.TokenKey
}

func (m *memoryKeys) TokenKeys(context.Context) ([]auth.TokenKey, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rows), nil
}

func (m *memoryKeys) ChangeTokenKeys(_ context.Context, decide func([]auth.TokenKey) ([]auth.TokenKey, error)) ([]auth.TokenKey, error) {
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
	return openKeysIn(tb, tb.TempDir(), &memoryKeys{})
}

func openKeysIn(tb testing.TB, dir string, store auth.KeyStore) *auth.Keys {
	tb.Helper()
	keys, err := auth.OpenKeys(tb.Context(), auth.KeysOptions{Store: store, Keyring: sealtest.Keyring(), Dir: dir, Issuer: testIssuer})
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

// verifierOf accepts the tokens of keys.
func verifierOf(keys *auth.Keys) *auth.Verifier {
	return auth.NewVerifier(auth.VerifierOptions{Keys: keys})
}
