package layout_test

import (
	"testing"

	"spendhook/events/eventtest"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The events that tests accept, in short.
var (
	company  = eventtest.Company
	newEvent = eventtest.Event
)

type bundle struct{ *eventtest.Bundle }

func setup(tb testing.TB) *bundle {
	tb.Helper()
	return &bundle{eventtest.New(tb)}
}
