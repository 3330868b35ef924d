package certificate_test

import (
	"errors"
	"testing"

	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/subscriberstest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

type bundle struct {
	*subscriberstest.Bundle

	certificates *certificate.Store
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{Bundle: subscriberstest.New(t, subscribers.StoreOptions{})}
	b.certificates = certificate.New(certificate.Options{Client: b.Redis, Keyring: sealtest.Keyring(), Now: b.Now})
	return b
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
