package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/gen"
)

const (
	testCompany    = "6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11"
	testSubscriber = "0b9d1f7e-0000-4000-8000-000000000001"
	testJob        = "0b9d1f7e-0000-4000-8000-0000000000aa"
)

// replayWith runs replay against an API with these answers, by "METHOD path".
// An answer starting with a digit is a status.
func replayWith(t *testing.T, answers map[string][]string, args ...string) result {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Method + " " + r.URL.RequestURI()
		body, _ := io.ReadAll(r.Body)
		if len(body) > 0 {
			key += " " + string(body)
		}
		if len(answers[key]) == 0 {
			t.Errorf("unexpected %s", key)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
		}
		_, _ = io.WriteString(w, answers[key][0])
		answers[key] = answers[key][1:]
	}))
	defer api.Close()
	r := command(t, "", append([]string{"replay", "--url", api.URL, "--token", "t"}, args...)...)
	for key, left := range answers {
		if len(left) > 0 {
			t.Errorf("not asked: %s", key)
		}
	}
	return r
}

func TestReplayEvent(t *testing.T) {
	t.Parallel()
	replayWith(t, map[string][]string{
		"POST /api/v1/events/evt_1/replay?companyUuid=" + testCompany + " {}": {`{"content":[{"id":"evt_1.s","status":"PENDING"}]}`},
	}, "--event", "evt_1", "--company", testCompany).want(t, exitOK, "evt_1.s PENDING\n", "")

	replayWith(t, map[string][]string{
		"POST /api/v1/events/evt_1/replay {}": {`{"content":[]}`},
	}, "--event", "evt_1").want(t, exitFailure, "", "no subscriber wants this event")
}

func TestReplayDelivery(t *testing.T) {
	t.Parallel()
	replayWith(t, map[string][]string{
		"POST /api/v1/deliveries/evt_1.s/retry": {`{"id":"evt_1.s","status":"PENDING"}`},
	}, "--delivery", "evt_1.s").want(t, exitOK, "evt_1.s PENDING\n", "")
}

func TestReplaySubscriber(t *testing.T) {
	t.Parallel()
	base := "/api/v1/subscribers/" + testSubscriber + "/recover"
	job := `{"uuid":"` + testJob + `","status":"%s","examined":%d,"redelivered":%d%s}`
	replayWith(t, map[string][]string{
		"POST " + base + ` {"dryRun":false,"since":"2026-01-02T03:04:05Z"}`: {fmt.Sprintf(job, "QUEUED", 0, 0, "")},
		"GET /api/v1/jobs/" + testJob: {
			fmt.Sprintf(job, "RUNNING", 5, 2, ""),
			fmt.Sprintf(job, "COMPLETED", 10, 4, `,"finishedAt":"2026-01-02T03:04:06Z"`),
		},
	}, "--subscriber", testSubscriber, "--since", "2026-01-02T03:04:05Z", "--wait").
		want(t, exitOK, "job "+testJob+" COMPLETED: 10 examined, 4 redelivered\n", "")
}

func TestReplayNeedsOneThing(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{},
		{"--event", "a", "--delivery", "b"},
		{"--subscriber", testSubscriber},
		{"--subscriber", "me", "--since", "2026-01-02T03:04:05Z"},
	} {
		r := command(t, "", append([]string{"replay", "--token", "t"}, args...)...)
		if r.code != exitUsage {
			t.Errorf("%s: exit code %d: %s", strings.Join(args, " "), r.code, r.stderr)
		}
	}
}

func TestProblemWithoutADocument(t *testing.T) {
	t.Parallel()
	proxy := httptest.NewServer(http.NotFoundHandler())
	defer proxy.Close()
	command(t, "", "replay", "--url", proxy.URL, "--token", "t", "--event", "e").
		want(t, exitFailure, "", "404 HTTP_ERROR: Not Found")
}

// Dead letters come to life again: one, an event's, and all of a subscriber's.
func TestReplayDeadLetters(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "delivery: {schedule: [100ms]}\n").start(t)
	var broken atomic.Bool
	broken.Store(true)
	e := newEndpoint(t, func(string) int {
		if broken.Load() {
			return http.StatusInternalServerError
		}
		return http.StatusNoContent
	})
	sub := e.subscribe(t, d, "PAYMENT_PAID").UUID.String()
	began := time.Now()
	d.cli(t, eventLines(0, 3, began), "emit", "-").want(t, exitOK, "accepted 3", "")
	eventually(t, patience, "all three are dead", func() bool {
		var list gen.DeliveryList
		d.read(t, "/api/v1/deliveries?status=DEAD", &list)
		return len(list.Content) == 3
	})
	broken.Store(false)

	d.cli(t, "", "replay", "--delivery", "evt_0."+sub).want(t, exitOK, "evt_0."+sub, "")
	e.awaits(t, 1)
	d.cli(t, "", "replay", "--event", "evt_1").want(t, exitOK, "evt_1."+sub, "")
	e.awaits(t, 2)
	since := began.Add(-time.Minute).Format(time.RFC3339)
	d.cli(t, "", "replay", "--subscriber", sub, "--since", since, "--dry-run", "--wait").
		want(t, exitOK, " examined, 1 to redeliver", "")
	d.cli(t, "", "replay", "--subscriber", sub, "--since", since, "--wait").
		want(t, exitOK, " examined, 1 redelivered", "")
	e.awaits(t, 3)
}
