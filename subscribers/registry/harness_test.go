package registry

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/listing"
)

func TestMain(m *testing.M) { redistest.Main(m) }

type bundle struct {
	client  redis.UniversalClient
	now     time.Time
	store   *subscribers.Store
	reader  *listing.Reader
	company uuid.UUID
}

// setup makes a store on an empty database.
func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{client: redistest.New(t), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), company: uuid.New()}
	b.store = subscribers.NewStore(subscribers.StoreOptions{
		Client: b.client, Now: func() time.Time { return b.now }, Keyring: sealtest.Keyring(),
	})
	b.reader = listing.New(b.client, sealtest.Keyring())
	return b
}

func (b *bundle) input(url string) subscribers.Settings {
	return subscribers.Settings{Name: new("Payments"), CallbackURL: &url, Events: new([]string{"PAYMENT_PAID"})}
}

func (b *bundle) create(t *testing.T, url string) subscribers.Subscriber {
	t.Helper()
	s, err := b.store.Create(t.Context(), b.company, b.input(url))
	noErr(t, err)
	return s
}

// version is what a claim reads before the registry is asked.
func (b *bundle) version(t *testing.T) int64 {
	t.Helper()
	v, err := b.reader.Version(t.Context(), b.company)
	noErr(t, err)
	return v
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// hook sees the pipelines that a client sends.
type hook func(cmds []redis.Cmder)

func (h hook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h(cmds)
		return next(ctx, cmds)
	}
}
