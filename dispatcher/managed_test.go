package dispatcher

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
)

// A receiver that answers 429 with Retry-After is left alone for so long: by what waits
// in memory, and by what comes meanwhile.
func TestRetryAfterPausesTheEndpoint(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var mu sync.Mutex
	var asked time.Time // when it asked for the pause
	early := 0
	r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case n == 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			asked = time.Now()
		case time.Since(asked) < 990*time.Millisecond: // whole ms are kept
			early++
		}
	})
	s := h.subscribe(r.URL)
	first := h.emit(1)
	h.becomes(first[0], s, "RETRYING", func(d delivery.Delivery) bool { return d.Count == 1 })
	ids := append(h.emit(20), first...)
	h.reachAll(ids, s, delivery.StatusDelivered)
	mu.Lock()
	defer mu.Unlock()
	if early > 0 {
		t.Errorf("%d attempts came within the pause", early)
	}
	if n := r.count(); n != len(ids)+1 {
		t.Errorf("%d attempts of %d deliveries", n, len(ids))
	}
}

// What comes while a subscriber is paused waits, as PENDING, and goes out when it is
// resumed. Others are not held up.
func TestPausedSubscriberGetsNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	paused, other := receive(t, nil), receive(t, nil)
	s, o := h.subscribe(paused.URL), h.subscribe(other.URL)
	if err := h.opts.Subscribers.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(30)
	h.reachAll(ids, o, delivery.StatusDelivered)
	for _, id := range ids {
		h.becomes(id, s, "PENDING PAUSED", func(d delivery.Delivery) bool {
			return d.Status == delivery.StatusPending && d.Reason == delivery.ReasonPaused && d.NextAttemptAt() == nil
		})
	}
	if n := paused.count(); n > 0 {
		t.Errorf("%d were sent to a paused subscriber", n)
	}
	if err := h.opts.Subscribers.Resume(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	h.reachAll(ids, s, delivery.StatusDelivered)
	paused.once(t, ids)
	h.idle()
}

// What waits for a paused subscriber can be dropped; what comes meanwhile is not.
func TestResumeDropsWhatWaited(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := receive(t, nil)
	s := h.subscribe(r.URL)
	if err := h.opts.Subscribers.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(600)
	h.reachAll(ids, s, delivery.StatusPending)
	job, err := h.Redelivery().Drop(t.Context(), s.CompanyUUID, s.UUID)
	if err != nil {
		t.Fatal(err)
	}
	later := h.emit(1)
	h.reachAll(later, s, delivery.StatusDelivered)
	h.reachAll(ids, s, delivery.StatusCancelled)
	if n := r.count(); n != 1 {
		t.Errorf("%d were sent", n)
	}
	job, err = h.Redelivery().Job(t.Context(), s.CompanyUUID, job.UUID)
	if err != nil || job.Redelivered != int64(len(ids)) {
		t.Errorf("the job says %+v, %v", job, err)
	}
	h.idle()
}
