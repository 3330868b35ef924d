package api

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"spendhook/internal/redistest"
)

// A refusal waits, unless as many of its company or of all wait as may.
func TestRefusalsAreDelayed(t *testing.T) {
	t.Parallel()
	f := newRefusals()
	started := time.Now()
	f.delay(t.Context(), "a")
	if took := time.Since(started); took < refusalDelay {
		t.Errorf("delayed for %v", took)
	}
	for range maxDelayedOfOne {
		f.begin("a")
	}
	if f.begin("a") {
		t.Error("one more of the company is delayed")
	}
	for i := range maxDelayed - maxDelayedOfOne {
		if !f.begin(string(rune('b' + i/maxDelayedOfOne))) {
			t.Fatalf("refusal %d is not delayed", i)
		}
	}
	if f.begin("z") {
		t.Error("one more of all is delayed")
	}
	f.end("a")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var group sync.WaitGroup
	group.Go(func() { f.delay(gone, "z") }) // its client is gone
	group.Wait()
	if f.total != maxDelayed-1 || f.delayed["z"] != 0 {
		t.Errorf("%d are delayed, %d of them of z", f.total, f.delayed["z"])
	}
}

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
}
