package main

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"spendhook/internal/pgtest"
	"spendhook/internal/redistest"
	"spendhook/storage"
)

// A clock that is more than a second off is a warning of /readyz until it agrees again.
func TestClockWatch(t *testing.T) {
	t.Parallel()
	log, reg := &lockedBuffer{}, newRegistry()
	var ahead time.Duration
	shifted := func(context.Context) (time.Time, error) { return time.Now().Add(ahead), nil }
	w := newClockWatch(nil, reg, slog.New(slog.NewTextHandler(log, nil)))
	for _, tc := range []struct {
		ahead time.Duration
		want  string
	}{{0, ""}, {time.Minute, "ahead of"}, {-time.Minute, "behind"}, {-time.Minute, "behind"}, {0, ""}} {
		ahead = tc.ahead
		w.sample(t.Context(), "redis", shifted)
		got := strings.Join(w.warnings(), "; ")
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%v ahead: %q", tc.ahead, got)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "clocks differ") || !strings.Contains(got, "agree again") {
		t.Errorf("logged:\n%s", got)
	}
	server := httptest.NewServer(newAdmin(nil, nil, reg).handler())
	defer server.Close()
	if _, body := get(t, server.URL+"/metrics"); !strings.Contains(body, "\nspendhook_clock_ahead_seconds{server=\"redis\"} 0\n") {
		t.Error("the metric is not 0")
	}
}

// On one machine all clocks agree.
func TestClocksOfServersAreRead(t *testing.T) {
	t.Parallel()
	sqlite, err := storage.Open(storage.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer sqlite.Close()
	postgres, err := storage.Open(storage.Options{URL: pgtest.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer postgres.Close()
	if err := postgres.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]clockReader{"redis": redisClock(redistest.New(t)), "sqlite": sqlite.Now, "postgres": postgres.Now} {
		before := time.Now().Add(-time.Millisecond)
		at, err := read(t.Context())
		if err != nil || at.Before(before) || at.After(time.Now().Add(time.Millisecond)) {
			t.Errorf("%s: %v, %v", name, at, err)
		}
	}
}
