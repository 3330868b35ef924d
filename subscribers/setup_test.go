package subscribers_test

import (
	"errors"
	"strings"
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

func newClock() *clock {
	c := &clock{}
	c.ms.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	return c
}

func (c *clock) Now() time.Time          { return time.UnixMilli(c.ms.Load()) }
func (c *clock) advance(d time.Duration) { c.ms.Add(d.Milliseconds()) }

type bundle struct {
	client  redis.UniversalClient
	clock   *clock
	store   *subscribers.Store
	company uuid.UUID
}

// setup makes a store on an empty database; the options' Client and Now are
// filled in.
func setup(t *testing.T, opts subscribers.StoreOptions) *bundle {
	t.Helper()
	b := &bundle{client: redistest.New(t), clock: newClock(), company: uuid.New()}
	opts.Client, opts.Now, opts.Keyring = b.client, b.clock.Now, sealtest.Keyring()
	b.store = subscribers.NewStore(opts)
	return b
}

// lists reads with the keys of setup.
func (b *bundle) lists() *listing.Reader { return listing.New(b.client, sealtest.Keyring()) }

func (b *bundle) registry() *registry.Registry { return registry.New(b.lists(), 0) }

func (b *bundle) input(url string) subscribers.Settings {
	return subscribers.Settings{Name: new("Payments"), CallbackURL: &url, Events: new([]string{"PAYMENT_PAID"})}
}

func (b *bundle) create(t *testing.T, url string) subscribers.Subscriber {
	t.Helper()
	s, err := b.store.Create(t.Context(), b.company, b.input(url))
	if err != nil {
		t.Fatalf("create %s: %v", url, err)
	}
	return s
}

// version is what a dispatch reads before it asks the registry.
func (b *bundle) version(t *testing.T) int64 {
	t.Helper()
	v, err := b.lists().Version(t.Context(), b.company)
	if err != nil {
		t.Fatalf("read version: %v", err)
	}
	return v
}

// codes joins the "field CODE" pairs of an *invalid.Error.
func codes(t *testing.T, err error) string {
	t.Helper()
	var problems *invalid.Error
	if !errors.As(err, &problems) {
		t.Fatalf("error = %v, want an *invalid.Error", err)
	}
	var all []string
	for _, f := range problems.Fields {
		all = append(all, f.Field+" "+f.Code)
	}
	return strings.Join(all, ", ")
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error = %v, want %v", err, want)
	}
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
