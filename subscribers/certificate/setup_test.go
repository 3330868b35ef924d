package certificate_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/invalid"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/listing"
)

func TestMain(m *testing.M) { redistest.Main(m) }

type bundle struct {
	client      redis.UniversalClient
	subscribers *subscribers.Store
	store       *certificate.Store
	company     uuid.UUID
}

func (b *bundle) lists() *listing.Reader { return listing.New(b.client, sealtest.Keyring()) }

// today is the time of the tests.
func today() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{client: redistest.New(t), company: uuid.New()}
	b.subscribers = subscribers.NewStore(subscribers.StoreOptions{Client: b.client, Keyring: sealtest.Keyring()})
	b.store = certificate.New(b.client, sealtest.Keyring(), today)
	return b
}

func (b *bundle) create(t *testing.T, url string) subscribers.Subscriber {
	t.Helper()
	s, err := b.subscribers.Create(t.Context(), b.company, subscribers.Settings{
		Name: new("Payments"), CallbackURL: &url, Events: new([]string{"PAYMENT_PAID"}),
	})
	noErr(t, err)
	return s
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
