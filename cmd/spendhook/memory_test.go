package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/redistest"
)

// tenant is one company at a daemon, with its token and its endpoint.
type tenant struct {
	daemon   *running
	endpoint *endpoint
	accepted []string
}

// bigEvent has a body of some 60,000 bytes.
func bigEvent(id string) string {
	return fmt.Sprintf(`{"id":%q,"event":"PAYMENT_PAID","timestamp":%q,"metadata":{"fill":%q}}`,
		id, testTime.Format(time.RFC3339), strings.Repeat("x", 60_000))
}

var testTime = time.Now()

// one posts one big event and returns the status, and the code of a problem.
func (tn *tenant) one(tb testing.TB, id string) (status int, code, retryAfter string) {
	tb.Helper()
	status, header, answer := tn.daemon.do(tb, http.MethodPost, "/api/v1/events", bigEvent(id))
	var problem struct {
		Code string `json:"code"`
	}
	if err := json.Unmarshal([]byte(answer), &problem); err != nil { // a success has no code
		tb.Fatal(err)
	}
	if status == http.StatusAccepted {
		tn.accepted = append(tn.accepted, id)
	}
	return status, problem.Code, header.Get("Retry-After")
}

func (tn *tenant) wantRefused(tb testing.TB, id string) {
	tb.Helper()
	if status, code, after := tn.one(tb, id); status != http.StatusServiceUnavailable || code != "STORAGE_FULL" || after == "" {
		tb.Errorf("a new event: %d %s, Retry-After %q, want 503 STORAGE_FULL", status, code, after)
	}
}

func (tn *tenant) awaitAll(tb testing.TB, what string) {
	tb.Helper()
	eventually(tb, deliveryPatience, what, func() bool {
		for _, id := range tn.accepted {
			if !tn.endpoint.has(id) {
				return false
			}
		}
		return true
	})
}

func metric(tb testing.TB, d *running, name string) float64 {
	tb.Helper()
	_, text := get(tb, d.admin+"/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return value
		}
	}
	tb.Fatalf("no metric %s", name)
	return 0
}

// as is the daemon as a client of another company sees it.
func (r *running) as(tb testing.TB, in installation, company uuid.UUID) *running {
	tb.Helper()
	minted := command(tb, "", "token", "--ttl", "24h", "--data-dir", in.dir, "--config", filepath.Join(in.dir, "config.yml"), "--company", company.String(),
		"--scope", "events:read events:write subscribers:read subscribers:write deliveries:read deliveries:write")
	minted.want(tb, exitOK, "ey", "")
	return &running{api: r.api, admin: r.admin, token: strings.TrimSpace(minted.stdout)}
}

// Above the high-water mark of Redis's memory new events are refused, known ones are
// answered, and readiness warns; with memory again events are accepted.
func TestNewEventsAreRefusedAboveTheHighWaterMark(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory", "64mb", "--maxmemory-policy", "noeviction"}})
	client := server.Client()
	d := newInstallation(t, unhurried(server.URL()), "").start(t)
	tn := &tenant{daemon: d, endpoint: newEndpoint(t, nil)}
	sub := tn.endpoint.subscribe(t, d, "PAYMENT_PAID")
	tn.one(t, "known")
	tn.awaitAll(t, "the event is delivered")
	warns := func() bool {
		code, body := get(t, d.admin+"/readyz")
		return code == http.StatusOK && strings.Contains(body, "high-water mark")
	}

	if err := client.SetRange(t.Context(), "junk", 56<<20, "x").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "readiness warns of the high-water mark", warns)
	tn.wantRefused(t, "refused")
	if status, code, _ := tn.one(t, "known"); status != http.StatusOK {
		t.Errorf("a known event: %d %s", status, code)
	}
	for _, request := range []struct{ method, path, body string }{
		{http.MethodPost, "/api/v1/subscribers", `{"name":"another","callbackUrl":"` + tn.endpoint.URL + `/other","events":["PAYMENT_PAID"]}`},
		{http.MethodPost, "/api/v1/events/known/replay", `{}`},
		{http.MethodPost, "/api/v1/deliveries/known." + sub.UUID.String() + "/retry", ""},
		{http.MethodPost, "/api/v1/subscribers/" + sub.UUID.String() + "/recover", `{"since":"2026-01-01T00:00:00Z"}`},
	} {
		if status, _, answer := d.do(t, request.method, request.path, request.body); status != http.StatusServiceUnavailable || !strings.Contains(answer, "STORAGE_FULL") {
			t.Errorf("%s %s: %d %s", request.method, request.path, status, answer)
		}
	}
	if status, _, answer := d.do(t, http.MethodPatch, "/api/v1/subscribers/"+sub.UUID.String(), `{"name":"changed"}`); status != http.StatusOK {
		t.Errorf("change a subscriber: %d %s", status, answer)
	}
	if n := metric(t, d, `spendhook_events_total{result="memory_full"}`); n != 1 {
		t.Errorf("%v events were counted as refused", n)
	}

	if err := client.Del(t.Context(), "junk").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "events are accepted again", func() bool {
		status, _, _ := tn.one(t, "after")
		return status == http.StatusAccepted
	})
	tn.awaitAll(t, "the event is delivered")
	eventually(t, patience, "readiness does not warn any more", func() bool { return !warns() })
	d.stop(t)
}

// The daemon compacts an event that all subscribers have received. It keeps the payload of an
// event that a disabled subscriber can still recover.
func TestDeliveredEventsAreCompacted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	d := newInstallation(t, unhurried(server.URL()), "events: {keep_delivered: 1s}\n").start(t)
	client := server.Client()
	state := func(id string) string {
		return client.GetRange(t.Context(), layout.EventKey(events.Ref{Company: developerCompany, ID: id}), 0, 0).Val()
	}
	tn := &tenant{daemon: d, endpoint: newEndpoint(t, nil)}
	tn.endpoint.subscribe(t, d, "PAYMENT_PAID")
	disabled := newEndpoint(t, nil).subscribe(t, d, "PAYMENT_PAID")
	if status, _, answer := d.do(t, http.MethodPatch, "/api/v1/subscribers/"+disabled.UUID.String(), `{"enabled":false}`); status != http.StatusOK {
		t.Fatalf("disable: %d %s", status, answer)
	}
	tn.one(t, "held")
	tn.awaitAll(t, "the event is delivered")
	if status, _, answer := d.do(t, http.MethodDelete, "/api/v1/subscribers/"+disabled.UUID.String(), ""); status != http.StatusNoContent {
		t.Fatalf("delete: %d %s", status, answer)
	}
	tn.one(t, "delivered")
	tn.awaitAll(t, "both are delivered")
	eventually(t, patience, "the event is compacted", func() bool { return state("delivered") == "C" })
	if state("held") != "S" {
		t.Errorf("the event that a disabled subscriber was to have is %s", state("held"))
	}
	if metric(t, d, "spendhook_events_compacted_total") != 1 {
		t.Error("it was not counted")
	}
	eventually(t, patience, "a repeat is a duplicate", func() bool {
		status, _, _ := tn.one(t, "delivered")
		if status != http.StatusOK && status != http.StatusServiceUnavailable { // which a busy machine may answer first
			t.Fatalf("it was sent again: %d", status)
		}
		return status == http.StatusOK
	})
	d.stop(t)
}
