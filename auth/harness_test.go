package auth

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/internal/pgtest"
	"spendhook/internal/seal/sealtest"
	"spendhook/storage"
	"spendhook/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	ourIssuer = "https://spendhook.test"
	allScopes = "events:read events:write"
)

var home = netip.MustParseAddr("192.0.2.1")

// clock is a time that only tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, time.July, 1, 10, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// databases open an empty database of each kind.
var databases = map[string]func(testing.TB, *clock) *storage.DB{
	"sqlite": sqlite,
	"postgres": func(tb testing.TB, c *clock) *storage.DB {
		tb.Helper()
		return storagetest.Open(tb, storage.Options{URL: storagetest.Postgres(tb)})
	},
}

func sqlite(tb testing.TB, c *clock) *storage.DB {
	tb.Helper()
	return storagetest.Open(tb, storage.Options{})
}

// replica is one of the daemons on a database.
type replica struct {
	tb       testing.TB
	clock    *clock
	store    *storage.DB
	keys     *Keys
	clients  *Clients
	endpoint *Endpoint
	verifier *Verifier
	registry *prometheus.Registry
	log      *bytes.Buffer
}

func newReplica(tb testing.TB, store *storage.DB, c *clock) *replica {
	tb.Helper()
	r := &replica{tb: tb, clock: c, store: store, registry: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	r.keys = openTestKeys(tb, KeysOptions{Store: KeyTable{store}, Now: c.Now})
	r.clients = NewClients(store, c.Now)
	r.endpoint = NewEndpoint(EndpointOptions{
		Keys: r.keys, Clients: r.clients, Now: c.Now, Metrics: NewMetrics(r.registry),
		Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	r.verifier = NewVerifier(VerifierOptions{Keys: r.keys, Clients: r.clients, Now: c.Now})
	return r
}

func openTestKeys(tb testing.TB, o KeysOptions) *Keys {
	tb.Helper()
	if o.Dir == "" {
		o.Dir = tb.TempDir()
	}
	if o.Keyring == nil {
		o.Keyring = sealtest.Keyring()
	}
	o.Issuer = ourIssuer
	keys, err := OpenKeys(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	return keys
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

func (r *replica) mint(ttl time.Duration) string {
	r.tb.Helper()
	token, err := r.keys.Mint(r.tb.Context(), Grant{Subject: "test", Scopes: []string{"events:read"}, TTL: ttl})
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

// client makes a client of a company, with its secret.
func (r *replica) client(n NewClient) (Client, string) {
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

// away is a database that cannot be reached until it is back.
type away struct {
	KeyTable
	back bool
}

func (a *away) TokenKeys(ctx context.Context) ([]TokenKey, error) {
	if !a.back {
		return nil, storage.ErrUnavailable
	}
	return a.KeyTable.TokenKeys(ctx)
}

func (a *away) ChangeTokenKeys(ctx context.Context, decide func([]TokenKey) ([]TokenKey, error)) ([]TokenKey, error) {
	if !a.back {
		return nil, storage.ErrUnavailable
	}
	return a.KeyTable.ChangeTokenKeys(ctx, decide)
}
