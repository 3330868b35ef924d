package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"spendhook/internal/redistest"
	"spendhook/internal/redisx"
	"spendhook/subscribers/certificate"
)

func get(tb testing.TB, url string) (int, string) {
	tb.Helper()
	req, _ := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, http.NoBody)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	status := redisx.Status{Up: true, Warnings: []string{"append-only file off"}}
	var more []string
	a := newAdmin(func(context.Context) redisx.Status { return status }, func() []string { return more }, newRegistry())
	server := httptest.NewServer(a.handler())
	defer server.Close()
	ready := func(wantCode int, want string) {
		t.Helper()
		if code, body := get(t, server.URL+"/readyz"); code != wantCode || body != want+"\n" {
			t.Errorf("%d %s want %d %s", code, body, wantCode, want)
		}
	}
	address := strings.TrimPrefix(server.URL, "http://")

	ready(http.StatusServiceUnavailable, `{"ready":false,"problems":["the daemon is starting"],"warnings":["append-only file off"]}`)
	a.setUnready(nil)
	ready(http.StatusOK, `{"ready":true,"problems":[],"warnings":["append-only file off"]}`)
	command(t, "", "healthcheck", "--admin-listen", address).want(t, exitOK, `"ready":true`, "")
	more = []string{"no database"}
	ready(http.StatusOK, `{"ready":true,"problems":[],"warnings":["append-only file off","no database"]}`)
	more = nil

	status = redisx.Status{Up: true, Problems: []string{"may evict"}}
	ready(http.StatusServiceUnavailable, `{"ready":false,"problems":["may evict"],"warnings":[]}`)
	command(t, "", "healthcheck", "--admin-listen", address).want(t, exitFailure, "", "not ready: ")

	status = redisx.Status{Up: true}
	a.setUnready(errors.New("the daemon is shutting down"))
	ready(http.StatusServiceUnavailable, `{"ready":false,"problems":["the daemon is shutting down"],"warnings":[]}`)
	if code, _ := get(t, server.URL+"/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
}

func TestAdminServesMetricsAndProfiles(t *testing.T) {
	t.Parallel()
	a := adminOfAll()
	server := httptest.NewServer(a.handler())
	defer server.Close()
	for path, want := range map[string]string{
		"/metrics":                       "\nspendhook_build_info{",
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/symbol?0":          "",
	} {
		if code, body := get(t, server.URL+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	for header, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"} {
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile?seconds=300", "/debug/pprof/trace", "/debug/pprof/symbol"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.Header.Set(header, value)
			rec := httptest.NewRecorder()
			a.handler().ServeHTTP(rec, r)
			if rec.Code != http.StatusForbidden {
				t.Errorf("%s with %s: %d", path, header, rec.Code)
			}
		}
	}
	if code, _ := get(t, server.URL+"/debug/pprof/cmdline"); code != http.StatusNotFound {
		t.Errorf("the command line, which may hold a password, is shown: %d", code)
	}
}

// A problem is logged when it begins and when it ends, not every five seconds.
func TestRedisWatch(t *testing.T) {
	t.Parallel()
	log := &lockedBuffer{}
	var status redisx.Status
	reg := newRegistry()
	w := newRedisWatch(func(context.Context) redisx.Status { return status }, reg, slog.New(slog.NewTextHandler(log, nil)))
	down := redisx.Status{Problems: []string{"Redis does not answer"}}
	for _, s := range []redisx.Status{{Up: true}, down, down, {Up: true}, {Up: true}} {
		status = s
		w.sample(t.Context())
	}
	if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "Redis does not answer") || !strings.Contains(got, "no problems left") {
		t.Errorf("logged:\n%s", got)
	}
	one := redisx.Status{Down: []string{"a:1: Redis does not answer"}}
	both := redisx.Status{Down: []string{"a:1: Redis does not answer: other words", "b:1: Redis does not answer"}}
	for _, s := range []redisx.Status{one, one, both, both, one, {Up: true}} {
		status = s
		w.sample(t.Context())
	}
	if got := log.String(); strings.Count(got, "a:1: ") != 1 || strings.Count(got, "b:1: ") != 1 || strings.Count(got, "no problems left") != 2 {
		t.Errorf("logged:\n%s", got)
	}
	server := httptest.NewServer(newAdmin(nil, nil, reg).handler())
	defer server.Close()
	if _, body := get(t, server.URL+"/metrics"); !strings.Contains(body, "\nspendhook_redis_up 1\n") {
		t.Error("spendhook_redis_up is not 1")
	}
}

// After a failure the egress certificates are checked again soon, not an hour later.
func TestCertificatesAreCheckedAgainSoon(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	d := &daemon{log: slog.New(slog.DiscardHandler), certificates: certificate.New(certificate.Options{Client: server.Client()})}
	var ending atomic.Int64
	server.Kill()
	if wait := d.checkCertificates(t.Context(), &ending); wait != certificateRetry {
		t.Errorf("without Redis the next check is after %v", wait)
	}
	server.Restart()
	if wait := d.checkCertificates(t.Context(), &ending); wait != certificateEvery {
		t.Errorf("with Redis the next check is after %v", wait)
	}
}

func TestDialable(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		":9090":          "127.0.0.1:9090",
		"0.0.0.0:9090":   "127.0.0.1:9090",
		"[::]:9090":      "127.0.0.1:9090",
		"10.0.0.1:9090":  "10.0.0.1:9090",
		"localhost:9090": "localhost:9090",
	} {
		if got, err := dialable(listen); err != nil || got != want {
			t.Errorf("%s: got %q, %v", listen, got, err)
		}
	}
	if _, err := dialable("9090"); err == nil {
		t.Error("accepts an address without a port's colon")
	}
}

func TestReplicaID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	claim := func() (id string, release func()) {
		t.Helper()
		id, lock, err := claimReplicaID(dir)
		if err != nil {
			t.Fatal(err)
		}
		return id, func() {
			if err := lock.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	first, releaseFirst := claim()
	second, releaseSecond := claim()
	if first == second {
		t.Error("two running processes share an id")
	}
	releaseSecond()
	releaseFirst()
	again, release := claim()
	if again != first {
		t.Errorf("restarted as %s, was %s", again, first)
	}
	release()

	if err := os.WriteFile(filepath.Join(dir, "replica-id"), []byte(strings.Repeat("garbage ", 30)), 0o600); err != nil {
		t.Fatal(err)
	}
	fresh, release := claim()
	release()
	kept, release := claim()
	release()
	if kept != fresh {
		t.Error("the id that replaced garbage was not kept")
	}
	if _, _, err := claimReplicaID(filepath.Join(dir, "missing")); err == nil {
		t.Error("no error for a directory that is not there")
	}
}

func TestCleanupsRunInReversePastFailures(t *testing.T) {
	t.Parallel()
	var order []string
	var c cleanups
	for _, what := range []string{"redis", "workers", "intake"} {
		c.add(what, func(context.Context) error {
			order = append(order, what)
			if what == "workers" {
				return io.ErrUnexpectedEOF
			}
			return nil
		})
	}
	err := c.run(t.Context())
	if got := strings.Join(order, " "); got != "intake workers redis" {
		t.Errorf("order %s", got)
	}
	if err == nil || err.Error() != "stop workers: unexpected EOF" {
		t.Errorf("error %v", err)
	}
}
