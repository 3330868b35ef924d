// Package subscriberstest has helpers for tests with subscribers: a store on a Redis, certificates,
// and changes of stored data that simulate damage.
package subscriberstest

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
	"spendhook/internal/secret"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/registry"
)

// Bundle is a store of subscribers on one Redis, with a company. Its clock stands at noon until the test
// moves it.
type Bundle struct {
	Redis   redis.UniversalClient
	Store   *subscribers.Store
	Company uuid.UUID

	clock atomic.Int64 // unix ms
}

// New returns a Bundle on an empty Redis database.
func New(tb testing.TB, o subscribers.StoreOptions) *Bundle {
	tb.Helper()
	return On(redistest.New(tb), o)
}

// On returns a Bundle on a client. It sets Client, Now and Keyring of the options.
func On(client redis.UniversalClient, o subscribers.StoreOptions) *Bundle {
	b := &Bundle{Redis: client, Company: uuid.New()}
	b.clock.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMilli())
	o.Client, o.Now, o.Keyring = client, b.Now, sealtest.Keyring()
	b.Store = subscribers.NewStore(o)
	return b
}

// With returns a Bundle with the same company and Redis, and a store with other options.
func (b *Bundle) With(o subscribers.StoreOptions) *Bundle {
	other := On(b.Redis, o)
	other.Company = b.Company
	return other
}

// Registry returns an empty registry of the subscribers.
func (b *Bundle) Registry() *registry.Registry { return registry.New(b.Redis, sealtest.Keyring(), 0) }

// Now returns the time of the clock.
func (b *Bundle) Now() time.Time { return time.UnixMilli(b.clock.Load()) }

// Advance moves the clock.
func (b *Bundle) Advance(d time.Duration) { b.clock.Add(d.Milliseconds()) }

// Settings returns the settings of a subscriber to PAYMENT_PAID.
func (b *Bundle) Settings(url string) subscribers.Settings {
	return subscribers.Settings{Name: new("Payments"), CallbackURL: &url, Events: new([]string{"PAYMENT_PAID"})}
}

// Create creates a subscriber of the company.
func (b *Bundle) Create(tb testing.TB, url string) subscribers.Subscriber {
	tb.Helper()
	s, err := b.Store.Create(tb.Context(), b.Company, b.Settings(url))
	if err != nil {
		tb.Fatalf("create %s: %v", url, err)
	}
	return s
}

// Version returns the version of the company's subscribers, which a turn reads.
func (b *Bundle) Version(tb testing.TB) int64 {
	tb.Helper()
	v, err := b.Redis.HGet(tb.Context(), layout.CompanyKey(b.Company), layout.VersionField).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatalf("read version: %v", err)
	}
	return v
}

// Codes returns the "field CODE" pairs of an *invalid.Error, with commas between them.
func Codes(tb testing.TB, err error) string {
	tb.Helper()
	var problems *invalid.Error
	if !errors.As(err, &problems) {
		tb.Fatalf("error = %v, want an *invalid.Error", err)
	}
	var all []string
	for _, f := range problems.Fields {
		all = append(all, f.Field+" "+f.Code)
	}
	return strings.Join(all, ", ")
}

// Overwrite stores value as a field of a company's hash and raises the version, so that every
// replica sees the change. mend restores the former value in the same way.
func Overwrite(tb testing.TB, client redis.UniversalClient, company uuid.UUID, field, value string) (mend func()) {
	tb.Helper()
	key := layout.CompanyKey(company)
	former, err := client.HGet(tb.Context(), key, field).Result()
	if err != nil {
		tb.Fatal(err)
	}
	set := func(value string) {
		tb.Helper()
		err := client.HSet(tb.Context(), key, field, value).Err()
		if err == nil {
			err = client.HIncrBy(tb.Context(), key, layout.VersionField, 1).Err()
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	set(value)
	return func() { tb.Helper(); set(former) }
}

// LiveSecrets returns the secrets that open and have not expired at now, newest first.
func LiveSecrets(s *subscribers.Subscriber, now time.Time) (live []secret.Text) {
	for _, k := range s.Secrets {
		if k.Locked == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt)) {
			live = append(live, k.Key)
		}
	}
	return live
}
