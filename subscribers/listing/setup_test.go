package listing_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/invalid"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/listing"
	"spendhook/subscribers/registry"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// clock is a time that a test moves.
type clock struct{ ms atomic.Int64 }

func (c *clock) Now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

type bundle struct {
	client  redis.UniversalClient
	clock   *clock
	store   *subscribers.Store
	reader  *listing.Reader
	company uuid.UUID
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupOn(redistest.New(t))
}

func setupOn(client redis.UniversalClient) *bundle {
	b := &bundle{client: client, clock: &clock{}, company: uuid.New()}
	b.clock.ms.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	b.store = subscribers.NewStore(subscribers.StoreOptions{Client: client, Now: b.clock.Now, Keyring: sealtest.Keyring()})
	b.reader = listing.New(client, sealtest.Keyring())
	return b
}

func (b *bundle) create(t *testing.T, url string) subscribers.Subscriber {
	t.Helper()
	s, err := b.store.Create(t.Context(), b.company, subscribers.Settings{
		Name: new("Payments"), CallbackURL: &url, Events: new([]string{"PAYMENT_PAID"}),
	})
	noErr(t, err)
	return s
}

// companies makes n companies with some subscribers each.
func (b *bundle) companies(t *testing.T, n, each int) []registry.CompanyVersion {
	t.Helper()
	all := make([]registry.CompanyVersion, n)
	for i := range all {
		b.company = uuid.New()
		for k := range each {
			b.create(t, fmt.Sprintf("https://hooks.example.com/companies/%d/%d", i, k))
		}
		all[i] = registry.CompanyVersion{Company: b.company, Version: b.version(t)}
	}
	return all
}

// version is what a dispatch reads before it asks the registry.
func (b *bundle) version(t *testing.T) int64 {
	t.Helper()
	v, err := b.reader.Version(t.Context(), b.company)
	noErr(t, err)
	return v
}

// hook sees every command of the pipelines that a client sends.
type hook func(cmd redis.Cmder)

func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h(cmd)
		}
		return next(ctx, cmds)
	}
}

func wantInvalid(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*invalid.Error](err); !ok {
		t.Fatalf("error = %v, want an *invalid.Error", err)
	}
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
