package api

import (
	"context"
	"slices"
	"sync"
	"testing"

	"spendhook/auth"
	"spendhook/auth/keys"
	"spendhook/internal/seal/sealtest"
)

const testIssuer = "https://spendhook.test"

// memoryKeys stores keys in memory.
type memoryKeys struct {
	mu   sync.Mutex
	rows []keys.Key
}

func (m *memoryKeys) Read(context.Context) ([]keys.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rows), nil
}

func (m *memoryKeys) Change(_ context.Context, decide func([]keys.Key) ([]keys.Key, error)) ([]keys.Key, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows, err := decide(slices.Clone(m.rows))
	if err == nil {
		m.rows = rows
	}
	return slices.Clone(m.rows), err
}

// newKeys returns a signer with new keys.
func newKeys(tb testing.TB) *keys.Signer {
	tb.Helper()
	return openKeysIn(tb, tb.TempDir(), &memoryKeys{})
}

func openKeysIn(tb testing.TB, dir string, store keys.Store) *keys.Signer {
	tb.Helper()
	signer, err := keys.Open(tb.Context(), keys.Options{Store: store, Keyring: sealtest.Keyring(), Dir: dir, Issuer: testIssuer})
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

// verifierOf accepts the tokens of keys.
func verifierOf(keys *keys.Signer) *auth.Verifier {
	return newVerifier(auth.VerifierOptions{Keys: keys})
}

func newVerifier(o auth.VerifierOptions) *auth.Verifier {
	v, err := auth.NewVerifier(o)
	if err != nil {
		panic(err) // of an external issuer
	}
	return v
}
