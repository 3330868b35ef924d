package tokens

import (
	"testing"

	"github.com/google/uuid"

	"spendhook/auth"
	"spendhook/auth/authtest"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/internal/pgtest"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// replica is one of the daemons on a database.
type replica struct {
	tb       testing.TB
	keys     *keys.Signer
	clients  *clients.Store
	endpoint *Endpoint
	verifier *auth.Verifier
}

func newReplica(tb testing.TB, store *storage.DB, c *authtest.Clock) *replica {
	tb.Helper()
	r := &replica{tb: tb, clients: clients.NewStore(store, c.Now)}
	var err error
	r.keys, err = keys.Open(tb.Context(), keys.Options{
		Store: keys.Table(store), Keyring: sealtest.Keyring(), Dir: tb.TempDir(), Issuer: authtest.Issuer, Now: c.Now,
	})
	if err != nil {
		tb.Fatal(err)
	}
	r.endpoint = NewEndpoint(Options{
		Keys: r.keys, Clients: r.clients, Now: c.Now,
	})
	r.verifier, err = auth.NewVerifier(auth.VerifierOptions{Keys: r.keys, Revoked: r.clients.Revoked, Now: c.Now})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func (r *replica) sync() {
	r.tb.Helper()
	if err := r.keys.Sync(r.tb.Context()); err != nil {
		r.tb.Error(err)
	}
	if err := r.clients.Sync(r.tb.Context()); err != nil {
		r.tb.Error(err)
	}
}

func (r *replica) accepts(token string) bool {
	r.tb.Helper()
	_, err := r.verifier.Verify(r.tb.Context(), token)
	return err == nil
}

// client makes a client of a company, with its secret.
func (r *replica) client(n clients.Registration) (clients.Client, string) {
	r.tb.Helper()
	if n.Name == "" {
		n.Name = "ledger"
	}
	if n.Scopes == nil {
		n.Scopes = []string{"events:write", "events:read"}
	}
	if n.Company == nil {
		n.Company = new(uuid.MustParse("a0000000-0000-4000-8000-000000000000"))
	}
	client, secret, err := r.clients.Create(r.tb.Context(), n)
	if err != nil {
		r.tb.Fatal(err)
	}
	return client, secret
}
