package history_test

import (
	"testing"

	"spendhook/events/eventtest"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The events that tests accept, in short.
var (
	company  = eventtest.Company
	noon     = eventtest.Noon
	newEvent = eventtest.Event
	batchOf  = eventtest.Batch
	want     = eventtest.Want
)

const retention = eventtest.Retention

type bundle struct{ *eventtest.Bundle }

func setup(tb testing.TB) *bundle {
	tb.Helper()
	return &bundle{eventtest.New(tb)}
}
