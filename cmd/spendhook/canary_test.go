package main

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
)

const (
	canaryCompany  = "0d3b7a52-9f3c-4a39-8c55-1f2e7b6a9d10"
	canarySettings = "canary: {company: " + canaryCompany + "}\n"
	canaryArrival  = "spendhook_canary_last_arrival_timestamp_seconds"
)

// forge posts what a stranger may post.
func forge(tb testing.TB, d *running, body string) int {
	tb.Helper()
	req, _ := http.NewRequestWithContext(tb.Context(), http.MethodPost, d.api+"/canary", strings.NewReader(body))
	for name, value := range map[string]string{
		"webhook-id": "spendhook-canary-20260301T1200", "webhook-timestamp": strconv.FormatInt(time.Now().Unix(), 10),
		"webhook-signature": "v1,MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestCanaryArrives(t *testing.T) {
	t.Parallel()
	// With a strict catalogue and challenges, too.
	h := newInstallation(t, sharedRedis(t), canarySettings+"events: {strict_catalogue: true}\nsubscribers: {challenge: all}\n")
	d := h.start(t)
	eventually(t, patience, "the canary arrives", func() bool { return metric(t, d, canaryArrival) > 0 })
	at := metric(t, d, canaryArrival)
	if since := time.Since(time.UnixMilli(int64(at * 1000))); since < -time.Second || since > 2*patience {
		t.Errorf("arrived %v ago", since)
	}
	if n := metric(t, d, "spendhook_canary_latency_seconds_count"); n < 1 {
		t.Errorf("the latency of %v events was measured", n)
	}
	if code := forge(t, d, `{}`); code != http.StatusUnauthorized {
		t.Errorf("a forged delivery: answered %d", code)
	}
	if code := forge(t, d, strings.Repeat("x", 1<<16)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("64 KiB: answered %d", code)
	}
	if code, _ := get(t, d.api+"/canary"); code != http.StatusMethodNotAllowed {
		t.Errorf("GET: answered %d", code)
	}
	if n := metric(t, d, "spendhook_canary_failures_total"); n != 0 {
		t.Errorf("%v failures", n)
	}
}

// Off, it has no route, no metrics and no event type.
func TestCanaryIsOff(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	if code := forge(t, d, `{}`); code != http.StatusNotFound {
		t.Errorf("answered %d", code)
	}
	if _, text := get(t, d.admin+"/metrics"); strings.Contains(text, "canary") {
		t.Error("metrics of the canary are exported")
	}
	if _, text := get(t, d.api+"/webhooks.json"); strings.Contains(text, "CANARY") {
		t.Error("the event type is listed")
	}
}

// balancer passes requests to daemons in turn.
type balancer struct {
	*httptest.Server

	daemons  atomic.Pointer[[]*running] // nil: it answers 502
	turns    atomic.Int64
	refused  atomic.Int64 // requests that were answered 502
	accepted atomic.Int64 // requests that were answered 204
}

func newBalancer(tb testing.TB) *balancer {
	tb.Helper()
	b := &balancer{}
	b.Server = httptest.NewServer(b)
	tb.Cleanup(b.Close)
	return b
}

func (b *balancer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	daemons := b.daemons.Load()
	if daemons == nil {
		b.refused.Add(1)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	to, _ := url.Parse((*daemons)[int(b.turns.Add(1))%len(*daemons)].api)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ModifyResponse = func(answer *http.Response) error {
		if answer.StatusCode == http.StatusNoContent {
			b.accepted.Add(1)
		}
		return nil
	}
	proxy.ServeHTTP(w, r)
}

// Two replicas emit one event in a minute. It arrives through the load balancer, at one of them.
func TestCanaryOfTwoReplicas(t *testing.T) {
	t.Parallel()
	server, b := redistest.Start(t, redistest.Options{}), newBalancer(t)
	settings := "dev: true\n" + sharedKey + canarySettings + quickRetries + "public_url: " + b.URL + "\n"
	in := newInstallation(t, unhurried(server.URL()), settings)
	daemons := []*running{in.start(t), newInstallation(t, unhurried(server.URL()), settings).start(t)}
	b.daemons.Store(&daemons)
	owned := func(d *running) float64 { return metric(t, d, "spendhook_partitions_owned") }
	eventually(t, patience, "both own partitions", func() bool { return owned(daemons[0]) > 0 && owned(daemons[1]) > 0 })
	eventually(t, 3*time.Minute, "the events of two minutes arrive", func() bool { return b.accepted.Load() > 1 })
	eventually(t, patience, "a replica says so", func() bool {
		return time.Now().Unix()-int64(max(metric(t, daemons[0], canaryArrival), metric(t, daemons[1], canaryArrival))) < 60
	})
	var list gen.EventList
	daemons[0].as(t, in, uuid.MustParse(canaryCompany)).read(t, "/api/v1/events", &list)
	minutes := map[string]bool{}
	for _, e := range list.Content {
		minutes[e.Timestamp.UTC().Format("15:04")] = true
	}
	if len(minutes) < 2 || len(minutes) != len(list.Content) {
		t.Errorf("%d events in %d minutes", len(list.Content), len(minutes))
	}
	var subs gen.SubscriberPage
	daemons[0].as(t, in, uuid.MustParse(canaryCompany)).read(t, "/api/v1/subscribers", &subs)
	if len(subs.Content) != 1 || subs.Content[0].CallbackURL != b.URL+"/canary" {
		t.Errorf("subscribers %+v", subs.Content)
	}
}

func TestDoctorLooksAtTheCanary(t *testing.T) {
	t.Parallel()
	server, b := redistest.Start(t, redistest.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb"}}), newBalancer(t)
	h := newInstallation(t, unhurried(server.URL()), "")
	file := filepath.Join(h.dir, "config.yml")
	settings := "dev: true\nredis: " + server.URL() + "?read_timeout=20s\n" + quickRetries
	h.settings(t, settings)
	look := func(code int, result, message string) {
		t.Helper()
		got := found(t, code, "--config", file, "--data-dir", h.dir)["canary"]
		if got.Result != result || !strings.Contains(got.Message, message) {
			t.Errorf("%+v, want %s and %q", got, result, message)
		}
	}
	look(exitOK, findingOK, "it is off")
	h.settings(t, settings+canarySettings+"public_url: "+b.URL+"\n")
	look(exitOK, findingWarning, "no subscriber")
	d := h.start(t)
	eventually(t, patience, "the first event is refused", func() bool { return b.refused.Load() > 0 })
	look(exitFailure, findingProblem, "none of its events was acknowledged at "+b.URL+"/canary")
	b.daemons.Store(&[]*running{d})
	eventually(t, deliveryPatience, "an event arrives", func() bool { return b.accepted.Load() > 0 })
	d.stop(t)
	look(exitOK, findingOK, "its last event was acknowledged at "+b.URL+"/canary")
}
