package registry_test

import (
	"errors"
	"testing"

	"spendhook/internal/invalid"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/subscriberstest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// bundle is a subscriberstest.Bundle with what only these tests need.
type bundle struct{ *subscriberstest.Bundle }

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{subscriberstest.New(t, subscribers.StoreOptions{})}
}

func noErr(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantInvalid(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*invalid.Error](err); !ok {
		t.Fatalf("error = %v, want an *invalid.Error", err)
	}
}
