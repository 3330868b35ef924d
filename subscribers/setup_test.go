package subscribers_test

import (
	"errors"
	"testing"

	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/subscriberstest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// bundle is a subscriberstest.Bundle with what only these tests need.
type bundle struct{ *subscriberstest.Bundle }

func setup(t *testing.T, opts subscribers.StoreOptions) *bundle {
	t.Helper()
	return &bundle{subscriberstest.New(t, opts)}
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
