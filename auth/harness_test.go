package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwk"

	"spendhook/auth/authtest"
	"spendhook/auth/keys"
	"spendhook/internal/pgtest"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const allScopes = "events:read events:write"

// replica is one of the daemons on a database.
type replica struct {
	tb       testing.TB
	clock    *authtest.Clock
	keys     *keys.Signer
	store    *switched
	dir      string
	verifier *Verifier
}

func newReplica(tb testing.TB, store *storage.DB, c *authtest.Clock) *replica {
	tb.Helper()
	r := &replica{tb: tb, clock: c, store: &switched{Store: keys.Table(store), up: true}, dir: tb.TempDir()}
	r.keys = openKeys(tb, keys.Options{Store: r.store, Dir: r.dir, Now: c.Now})
	r.verifier = newVerifier(tb, VerifierOptions{Keys: r.keys, Now: c.Now})
	return r
}

func openKeys(tb testing.TB, o keys.Options) *keys.Signer {
	tb.Helper()
	if o.Dir == "" {
		o.Dir = tb.TempDir()
	}
	if o.Issuer == "" {
		o.Issuer = authtest.Issuer
	}
	o.Keyring = sealtest.Keyring()
	signer, err := keys.Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	return signer
}

func newVerifier(tb testing.TB, o VerifierOptions) *Verifier {
	tb.Helper()
	v, err := NewVerifier(o)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// ownIssuer is the verifier's view of the replica's own keys.
func (r *replica) ownIssuer() *source { return r.verifier.issuers[authtest.Issuer] }

func (r *replica) sync() {
	r.tb.Helper()
	if err := r.keys.Sync(r.tb.Context()); err != nil {
		r.tb.Error(err)
	}
}

// keyID is that of the first key.
func (r *replica) keyID() string { return r.keys.List()[0].ID }

// private is the first key, with its id.
func (r *replica) private() jwk.Key {
	r.tb.Helper()
	rows, err := r.store.Read(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	der, err := sealtest.Keyring().Open(rows[0].Sealed, "token key "+rows[0].ID)
	if err != nil {
		r.tb.Fatal(err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		r.tb.Fatal(err)
	}
	key, err := jwk.Import(parsed.(*ecdsa.PrivateKey))
	if err := errors.Join(err, key.Set(jwk.KeyIDKey, rows[0].ID)); err != nil {
		r.tb.Fatal(err)
	}
	return key
}

func (r *replica) mint(ttl time.Duration) string {
	r.tb.Helper()
	token, err := Mint(r.keys, Grant{Subject: "test", Scopes: []string{"events:read"}, TTL: ttl}, r.clock.Now())
	if err != nil {
		r.tb.Fatal(err)
	}
	return token
}

func (r *replica) accepts(token string) bool {
	r.tb.Helper()
	_, err := r.verifier.Verify(r.tb.Context(), token)
	return err == nil
}

// switched is a database that cannot be reached unless it is up. It counts what is read.
type switched struct {
	keys.Store

	up    bool
	reads int
}

func (s *switched) Read(ctx context.Context) ([]keys.Key, error) {
	s.reads++
	if !s.up {
		return nil, storage.ErrUnavailable
	}
	return s.Store.Read(ctx)
}

func (s *switched) Change(ctx context.Context, decide func([]keys.Key) ([]keys.Key, error)) ([]keys.Key, error) {
	if !s.up {
		return nil, storage.ErrUnavailable
	}
	return s.Store.Change(ctx, decide)
}
