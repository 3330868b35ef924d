package api

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"spendhook/internal/redistest"
)

// A client that asks again at once is answered late, and so asks less.
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
