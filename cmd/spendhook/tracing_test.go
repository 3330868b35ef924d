package main

import (
	"cmp"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/api/gen"
	"spendhook/internal/otlptest"
)

const (
	emittersTrace = "0af7651916cd43dd8448eb211c80319c"
	emittersSpan  = "00-" + emittersTrace + "-b7ad6b7169203331-01"
)

// traced is a receiver that records the trace of each attempt.
type traced struct {
	*endpoint
	healed atomic.Bool

	mu    sync.Mutex
	spans map[string][]string // traceparents, by event
}

func newTraced(tb testing.TB, d *running) *traced {
	tb.Helper()
	e := &traced{spans: map[string][]string{}}
	e.endpoint = newEndpoint(tb, func(string) int {
		if e.healed.Load() {
			return http.StatusNoContent
		}
		return http.StatusInternalServerError
	})
	of := e.Config.Handler
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		id := r.Header.Get("webhook-id")
		e.spans[id] = append(e.spans[id], r.Header.Get("Traceparent"))
		e.mu.Unlock()
		of.ServeHTTP(w, r)
	})
	e.subscribe(tb, d, "PAYMENT_PAID")
	return e
}

func (e *traced) of(id string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.spans[id]...)
}

// emitIn sends an event in a trace; "" is none.
func (r *running) emitIn(tb testing.TB, id, traceparent string) {
	tb.Helper()
	body := fmt.Sprintf(`{"id":%q,"event":"PAYMENT_PAID","timestamp":%d,"metadata":{}}`, id, time.Now().UnixMilli())
	req, _ := http.NewRequestWithContext(tb.Context(), http.MethodPost, r.api+"/api/v1/events", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+r.token)
	req.Header.Set("Content-Type", "application/json")
	if traceparent != "" {
		req.Header.Set("Traceparent", traceparent)
		req.Header.Set("Tracestate", "vendor="+strings.Repeat("a", 200))
	}
	resp, err := cmp.Or(r.http, http.DefaultClient).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		tb.Fatalf("emit %s: %d", id, resp.StatusCode)
	}
}

// attempts are those of an event's only delivery.
func (r *running) attempts(tb testing.TB, event string) []gen.Attempt {
	tb.Helper()
	var of struct {
		Content []gen.Delivery `json:"content"`
	}
	r.read(tb, "/api/v1/events/"+event+"/deliveries", &of)
	if len(of.Content) != 1 {
		tb.Fatalf("%s has %d deliveries", event, len(of.Content))
	}
	var detail struct {
		Attempts []gen.Attempt `json:"attempts"`
	}
	r.read(tb, "/api/v1/deliveries/"+of.Content[0].ID, &detail)
	return detail.Attempts
}

// One trace connects the emitter's request with every attempt, also after a restart. A hanging
// collector delays neither deliveries nor the shutdown.
func TestATraceLeadsToEachAttempt(t *testing.T) {
	t.Parallel()
	c := otlptest.Start(t)
	h := newInstallation(t, sharedRedis(t), "delivery: {schedule: ["+strings.Repeat("300ms, ", 49)+"300ms]}\n")
	h.environment = []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=50"}
	d := h.startChild(t)
	e := newTraced(t, d)
	d.emitIn(t, "evt_in", emittersSpan)
	d.emitIn(t, "evt_own", "garbage")
	eventually(t, patience, "attempts fail", func() bool { return len(e.of("evt_in")) > 0 && len(e.of("evt_own")) > 0 })
	d.stop(t)
	before := len(e.of("evt_in"))
	if line := regexp.MustCompile(`"msg":"delivery attempt".*"event_id":"evt_in".*`).FindString(d.stderr.String()); !strings.Contains(line, `"trace_id":"`+emittersTrace+`"`) {
		t.Errorf("the log has %s", line)
	}
	if !regexp.MustCompile(`"http.route":"/api/v1/events".*"trace_id":"` + emittersTrace + `"`).MatchString(d.stderr.String()) {
		t.Error("the log of requests names no trace")
	}

	d = h.startChild(t)
	e.healed.Store(true)
	e.awaits(t, 2)
	if len(e.of("evt_in")) <= before {
		t.Fatal("no attempt was made after the restart: this proves nothing")
	}
	wantNothingPending(t, d)
	ownTrace := e.of("evt_own")[0]
	for id, trace := range map[string]string{"evt_in": emittersTrace, "evt_own": strings.Split(ownTrace, "-")[1]} {
		sent := e.of(id)
		attempts := d.attempts(t, id)
		if len(attempts) > len(sent) {
			t.Errorf("%s: %d attempts are kept of %d", id, len(attempts), len(sent))
		}
		for i, a := range attempts {
			if a.TraceID != trace || a.RequestHeaders["traceparent"] != sent[len(sent)-len(attempts)+i] {
				t.Errorf("%s: attempt %d is kept in trace %s with %v", id, a.Number, a.TraceID, a.RequestHeaders)
			}
		}
		var spans map[string]otlptest.Span
		eventually(t, patience, "all spans are exported", func() bool {
			spans = map[string]otlptest.Span{}
			for _, s := range c.Spans(trace) {
				spans[s.SpanID] = s
			}
			return len(spans) == len(sent)+2
		})
		for _, traceparent := range sent {
			wantChain(t, spans, traceparent, id)
		}
	}

	c.Hang()
	for i := range 50 {
		d.emitIn(t, fmt.Sprintf("evt_hang_%d", i), emittersSpan)
	}
	e.awaits(t, 52)
	d.stop(t)
}

// wantChain follows an attempt's span up to the request in which its event came.
func wantChain(t *testing.T, spans map[string]otlptest.Span, traceparent, event string) {
	t.Helper()
	attempt := spans[strings.Split(traceparent, "-")[2]]
	if attempt.Name != "POST" || attempt.Attributes["messaging.message.id"] != event || attempt.Attributes["server.address"] != "127.0.0.1" ||
		strings.Contains(attempt.Attributes["url.full"], "hook") || attempt.Attributes["http.response.status_code"] == "" {
		t.Errorf("%s: attempt %+v", traceparent, attempt)
	}
	up := spans[attempt.ParentID]
	if up.Name == "dispatch event" { // of the first attempt; later ones are part of the request itself
		up = spans[up.ParentID]
	}
	if up.Name != "POST /api/v1/events" || up.Attributes["http.route"] != "/api/v1/events" {
		t.Errorf("%s leads to %+v", traceparent, up)
	}
}

// Without an exporter, attempts carry the emitter's trace unchanged.
func TestAttemptsCarryTheEmittersTrace(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), quickRetries).startChild(t)
	e := newTraced(t, d)
	e.healed.Store(true)
	d.emitIn(t, "evt_in", emittersSpan)
	d.emitIn(t, "evt_none", "")
	e.awaits(t, 2)
	wantNothingPending(t, d)
	if sent := e.of("evt_in"); sent[0] != emittersSpan {
		t.Errorf("sent with %q", sent)
	}
	if a := d.attempts(t, "evt_in")[0]; a.TraceID != emittersTrace || a.RequestHeaders["traceparent"] != emittersSpan {
		t.Errorf("kept %+v", a)
	}
	if sent := e.of("evt_none"); sent[0] != "" {
		t.Errorf("sent with %q", sent)
	}
	if a := d.attempts(t, "evt_none")[0]; a.TraceID != "" || a.RequestHeaders["traceparent"] != "" {
		t.Errorf("kept %+v", a)
	}
	d.stop(t)
}
