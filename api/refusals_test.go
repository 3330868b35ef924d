package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"spendhook/internal/redistest"
)

// A refusal is delayed, so that a client that repeats it at once sends fewer requests.
func TestARefusalIsAnsweredLate(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 1, 100)
	h.call("GET", eventTypes, "").want(http.StatusOK)
	started := time.Now()
	h.call("GET", eventTypes, "").want(http.StatusTooManyRequests, "RATE_LIMITED")
	if took := time.Since(started); took < refusalDelay {
		t.Errorf("answered after %v", took)
	}
	s, err := newServer(h.options)
	if err != nil {
		t.Fatal(err)
	}
	s.delayed.Store(maxDelayed) // as many as may wait
	rec := &recorder{ResponseWriter: httptest.NewRecorder(), request: &request{}, refused: true}
	started = time.Now()
	s.delayEnd(t.Context(), rec)
	if took := time.Since(started); took >= refusalDelay || s.delayed.Load() != maxDelayed {
		t.Errorf("one more was answered after %v", took)
	}
}

// While a refusal waits, its body is no longer counted, so it must not be in memory.
func TestADelayedRefusalHoldsNoBody(t *testing.T) {
	t.Parallel()
	h := limited(t, redistest.New(t), 1, 2)
	s, err := newServer(h.options)
	if err != nil {
		t.Fatal(err)
	}
	op := s.routes["/api/v1/events"][http.MethodPost]
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/events", strings.NewReader("["+event("a")+"]"))
	bearer(h.token)(r)
	r.Header.Set("Content-Type", mediaJSON)
	rec := &recorder{ResponseWriter: httptest.NewRecorder()}
	body := 0
	s.guard(op, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { body = len(rec.request.body) })).ServeHTTP(rec, r)
	if body == 0 || rec.request.body != nil {
		t.Errorf("a body of %d bytes, and %d after the answer", body, len(rec.request.body))
	}
}
