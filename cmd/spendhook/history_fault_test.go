//go:build faults

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/pgtest"
	"spendhook/internal/redistest"
	"spendhook/storage"
	"spendhook/storage/archive"
)

const historySettings = sharedKey + `
history: {enabled: true}
events: {keep_delivered: 1s}
` + quickRetries

// The history has every event with its delivery, after kills of daemons, the database and Redis.
func TestHistoryLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		database := pgtest.Start(t)
		historyLosesNothing(t, 2, storage.Options{URL: database.URL()}, func() {
			database.Stop()
			database.Restart()
		})
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		historyLosesNothing(t, 1, storage.Options{}, func() {}) // a kill of the daemon is one of the database
	})
}

func historyLosesNothing(t *testing.T, replicas int, database storage.Options, interrupt func()) {
	t.Helper()
	const many, each = 3000, 500
	server := redistest.Start(t, redistest.Options{AOF: true})
	var all []installation
	var running []*running
	for range replicas {
		h := newInstallation(t, server.URL(), historySettings)
		h.database = database.URL
		all, running = append(all, h), append(running, h.startChild(t))
	}
	if database.URL == "" {
		database.DataDir = all[0].dir
	}
	in := newEndpoint(t, failsSometimes)
	in.subscribe(t, running[0], "PAYMENT_PAID")
	for from := 0; from < many; from += each {
		lines := eventLines(from, each, time.Now())
		for i := 0; ; i++ { // as an emitter does while Redis restarts
			sent := running[0].cli(t, lines, "event", "send", "-f", "-")
			if sent.code == exitOK {
				break
			}
			if i == 20 {
				t.Fatalf("not sent: %s", sent.stderr)
			}
		}
		last := len(running) - 1
		switch from / each {
		case 1, 3:
			running[last].signal(syscall.SIGKILL)
			running[last].ended(t)
			running[last] = all[last].startChild(t)
		case 2:
			interrupt()
		case 4:
			server.Restart()
		}
	}
	in.awaits(t, many)
	eventually(t, deliveryPatience, "the history has all events", func() bool {
		d, err := storage.Open(withHistory(database))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }() // it was only read
		return hasAll(t, d, many)
	})
	seen := map[string]bool{}
	for query := "/api/v1/events?size=100"; ; {
		var page struct {
			Content []struct {
				ID string `json:"id"`
			} `json:"content"`
			NextCursor string `json:"nextCursor"`
		}
		running[0].read(t, query, &page)
		for _, e := range page.Content {
			if seen[e.ID] {
				t.Errorf("%s is listed twice", e.ID)
			}
			seen[e.ID] = true
		}
		if page.NextCursor == "" {
			break
		}
		query = "/api/v1/events?size=100&cursor=" + page.NextCursor
	}
	if len(seen) != many {
		t.Errorf("%d events are listed", len(seen))
	}
	for _, d := range running {
		d.stop(t)
	}
}

func withHistory(o storage.Options) storage.Options {
	o.History = true
	return o
}

// hasAll reports whether the history has many events of the test, each with a delivery that succeeded.
func hasAll(t *testing.T, db *storage.DB, many int) bool {
	t.Helper()
	ctx := t.Context()
	if err := db.Migrate(ctx); err != nil {
		return false
	}
	store := archive.New(db)
	companies, err := store.Companies(ctx, uuid.Nil, 10)
	if err != nil || len(companies) != 1 {
		return false
	}
	for from := 0; from < many; from += 100 {
		refs := make([]events.Ref, 100)
		for i := range refs {
			refs[i] = events.Ref{Company: companies[0], ID: fmt.Sprint("evt_", from+i)}
		}
		found, err := store.Get(ctx, refs)
		if err != nil {
			return false
		}
		for _, e := range found {
			if e == nil || len(e.Deliveries) != 1 || !strings.HasPrefix(e.Deliveries[0].Record, "D") {
				return false
			}
		}
	}
	return true
}
