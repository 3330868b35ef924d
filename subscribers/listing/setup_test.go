package listing_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"spendhook/internal/invalid"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/registry"
	"spendhook/subscribers/subscriberstest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// bundle is a subscriberstest.Bundle with what only these tests need.
type bundle struct{ *subscriberstest.Bundle }

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{subscriberstest.New(t, subscribers.StoreOptions{})}
}

// companies makes n companies with some subscribers each.
func (b *bundle) companies(t *testing.T, n, each int) []registry.CompanyVersion {
	t.Helper()
	all := make([]registry.CompanyVersion, n)
	for i := range all {
		b.Company = uuid.New()
		for k := range each {
			b.Create(t, fmt.Sprintf("https://hooks.example.com/companies/%d/%d", i, k))
		}
		all[i] = registry.CompanyVersion{Company: b.Company, Version: b.Version(t)}
	}
	return all
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
