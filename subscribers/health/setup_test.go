package health_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events/operational"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// clock is a time that a test moves.
type clock struct{ ms atomic.Int64 }

func (c *clock) Now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

type bundle struct {
	client      redis.UniversalClient
	clock       *clock
	subscribers *subscribers.Store
	store       *health.Store
	company     uuid.UUID
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupOn(redistest.New(t))
}

func setupOn(client redis.UniversalClient) *bundle {
	b := &bundle{client: client, clock: &clock{}, company: uuid.New()}
	b.clock.ms.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	told := operational.New(operational.Options{Client: client, Retention: 7 * 24 * time.Hour, Now: b.clock.Now})
	b.subscribers = subscribers.NewStore(subscribers.StoreOptions{
		Client: client, Now: b.clock.Now, Keyring: sealtest.Keyring(), MaxPerCompany: 1 << 20,
	})
	b.store = health.New(health.Options{Client: client, Operational: told, Now: b.clock.Now})
	return b
}

func (b *bundle) input(url string) subscribers.Settings {
	return subscribers.Settings{Name: new("Payments"), CallbackURL: &url, Events: new([]string{"PAYMENT_PAID"})}
}

func (b *bundle) create(t *testing.T, url string) subscribers.Subscriber {
	t.Helper()
	s, err := b.subscribers.Create(t.Context(), b.company, b.input(url))
	noErr(t, err)
	return s
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
