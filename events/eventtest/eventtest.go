// Package eventtest has helpers for tests with events: a publisher and a reader on one Redis, and
// valid events.
package eventtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/redistest"
)

// Company and Noon are the company and the time of the events in tests.
var (
	Company = uuid.MustParse("0190a3b4-0000-7000-8000-000000000001")
	Noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// Retention is how long a Bundle keeps ids.
const Retention = 7 * 24 * time.Hour

// Event returns a valid event at noon.
func Event(id string) events.Event {
	return events.Event{ID: id, CompanyUUID: Company, Type: "PAYMENT_PAID", Timestamp: Noon}
}

// Batch returns n events of a company whose ids begin with prefix.
func Batch(company uuid.UUID, prefix string, n int) []events.Event {
	batch := make([]events.Event, n)
	for i := range batch {
		batch[i] = Event(fmt.Sprintf("%s%04d", prefix, i))
		batch[i].CompanyUUID = company
	}
	return batch
}

// Body returns the body of an event.
func Body(tb testing.TB, e events.Event) string {
	tb.Helper()
	body, err := e.Body()
	if err != nil {
		tb.Fatalf("body of %+v: %v", e, err)
	}
	return string(body)
}

// Want fails the test unless the lists are equal.
func Want(tb testing.TB, what string, got []string, want ...string) {
	tb.Helper()
	if !slices.Equal(got, want) {
		tb.Errorf("%s: %q, want %q", what, got, want)
	}
}

// Bundle is a publisher and a reader on one Redis. Its clock stands at noon until the test moves it.
type Bundle struct {
	Redis     redis.UniversalClient
	Reader    *history.Reader
	Publisher *publish.Publisher
	Registry  *prometheus.Registry
	Clock     atomic.Int64 // unix ms
}

// New returns a Bundle on an empty Redis database.
func New(tb testing.TB) *Bundle {
	tb.Helper()
	return On(tb, redistest.New(tb), func(*publish.Options) {})
}

// On returns a Bundle on a client. change may change the options of its publisher.
func On(tb testing.TB, client redis.UniversalClient, change func(*publish.Options)) *Bundle {
	tb.Helper()
	b := &Bundle{Redis: client, Registry: prometheus.NewRegistry()}
	b.Clock.Store(Noon.UnixMilli())
	clock := func() time.Time { return time.UnixMilli(b.Clock.Load()) }
	b.Reader = history.New(history.Options{Client: client, Retention: Retention, Now: clock})
	o := publish.Options{
		Client: client, Retention: Retention, Now: clock, Wake: func(context.Context, []int) {},
		Registerer: b.Registry,
	}
	change(&o)
	b.Publisher = publish.New(o)
	tb.Cleanup(b.Publisher.Close)
	return b
}

// Accept accepts events and returns each result in one word.
func (b *Bundle) Accept(tb testing.TB, batch ...events.Event) []string {
	tb.Helper()
	results, err := b.Publisher.Accept(tb.Context(), batch)
	if err != nil {
		tb.Fatalf("accept: %v", err)
	}
	words := make([]string, len(results))
	for i, r := range results {
		if r.ID != batch[i].ID {
			tb.Errorf("result %d is about %q, want %q", i, r.ID, batch[i].ID)
		}
		words[i] = Word(r)
	}
	return words
}

// Word describes a result in one word.
func Word(r publish.Result) string {
	switch {
	case errors.Is(r.Err, publish.ErrConflict):
		return "CONFLICT"
	case errors.Is(r.Err, publish.ErrBacklogFull):
		return "BACKLOG_FULL"
	case errors.Is(r.Err, publish.ErrStorageFull):
		return "STORAGE_FULL"
	case r.Err != nil:
		return "INVALID"
	}
	return string(r.Status)
}
