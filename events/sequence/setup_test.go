package sequence_test

import (
	"testing"

	"spendhook/events/eventtest"
	"spendhook/events/sequence"
	"spendhook/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The events that tests accept, in short.
var (
	company  = eventtest.Company
	noon     = eventtest.Noon
	newEvent = eventtest.Event
	batchOf  = eventtest.Batch
)

const retention = eventtest.Retention

type bundle struct {
	*eventtest.Bundle

	reader *sequence.Reader
}

func setup(tb testing.TB) *bundle {
	tb.Helper()
	b := eventtest.New(tb)
	r := sequence.New(b.Redis)
	tb.Cleanup(r.Close)
	return &bundle{b, r}
}
