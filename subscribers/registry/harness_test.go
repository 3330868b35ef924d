package registry

import (
	"testing"

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
