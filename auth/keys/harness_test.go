package keys

import (
	"context"
	"testing"

	"spendhook/auth/authtest"
	"spendhook/internal/pgtest"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func openTest(tb testing.TB, o Options) *Signer {
	tb.Helper()
	if o.Dir == "" {
		o.Dir = tb.TempDir()
	}
	if o.Keyring == nil {
		o.Keyring = sealtest.Keyring()
	}
	o.Issuer = authtest.Issuer
	signer, err := Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

// down is a database that cannot be reached.
type down struct{}

func (down) Read(context.Context) ([]Key, error) { return nil, storage.ErrUnavailable }

func (down) Change(context.Context, func([]Key) ([]Key, error)) ([]Key, error) {
	return nil, storage.ErrUnavailable
}
