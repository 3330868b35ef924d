package dispatcher

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/webhook"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// retryQuarantined retries every entry of the quarantine.
func (h *harness) retryQuarantined() {
	h.t.Helper()
	page, err := h.Quarantine.List(h.t.Context(), quarantine.Filter{Company: &h.company, Size: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, q := range page.Items {
		if err := h.Quarantine.Retry(h.t.Context(), q); err != nil {
			h.t.Fatal(err)
		}
	}
}

// breakEncoding makes the outcomes of a subscriber impossible to encode until repaired is set.
func (h *harness) breakEncoding(sub subscribers.Subscriber) (repaired *atomic.Bool) {
	repaired = &atomic.Bool{}
	send := h.send
	h.send = func(ctx context.Context, r webhook.Request) attempt.Result {
		result := send(ctx, r)
		if r.URL.String() == sub.CallbackURL && !repaired.Load() {
			result.Class = "\xff" // no UTF-8
		}
		return result
	}
	return repaired
}

// An event that panics during matching is quarantined, and delays no other event.
func TestAPanicWhileMatchingIsContained(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	fine := h.subscribeTo(h.company, receive(t, nil).URL, "PAYMENT_FAILED")
	var repaired atomic.Bool
	target := h.target
	h.target = func(s *subscribers.Subscriber) *requests.Target {
		if s.UUID == sub.UUID && !repaired.Load() {
			return nil // its first use panics
		}
		return target(s)
	}
	h.start()
	bad := h.emit(3)
	eventually(t, func() bool { return len(h.quarantined()) == 3 }, "the events are quarantined")
	good := h.emitType("PAYMENT_FAILED", 5)
	h.reachAll(good, fine, delivery.StatusDelivered)
	repaired.Store(true)
	h.retryQuarantined()
	h.reachAll(bad, sub, delivery.StatusDelivered)
	h.settled()
	rc.once(t, bad)
}

// An outcome that panics while it is recorded is quarantined alone. The other outcomes of
// the batch are recorded, and only the event that panicked is sent again.
func TestAPanicWhileRecordingIsContained(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	broken.Store(true)
	h := build(t, redistest.New(t), func(o *Options) {
		o.Jitter = func() float64 { // of the next attempt, after a failure
			if broken.Load() {
				panic("an error in our code")
			}
			return 0
		}
	})
	var repaired atomic.Bool
	refusing := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !repaired.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	well := receive(t, nil)
	bad := h.subscribeTo(h.company, refusing.URL, "PAYMENT_FAILED")
	good := h.subscribe(well.URL)
	failing, fine := h.emitType("PAYMENT_FAILED", 3), h.emit(50)
	h.start()
	h.reachAll(fine, good, delivery.StatusDelivered)
	eventually(t, func() bool { return len(h.quarantined()) == len(failing) }, "what cannot be recorded is quarantined")
	broken.Store(false)
	repaired.Store(true)
	h.retryQuarantined()
	h.reachAll(failing, bad, delivery.StatusDelivered)
	h.settled()
	well.once(t, fine)
}

// A panic in a step of a job fails the step. The job goes on when the cause is gone.
func TestAPanicInAJobIsContained(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	var broken atomic.Bool
	var panics atomic.Int64
	h.Redelivery.Now = func() time.Time {
		if broken.Load() {
			panics.Add(1)
			panic("an error in our code")
		}
		return time.Now()
	}
	h.write(sub.UUID, []string{"e"}, time.Now(), dead)
	job, err := h.Redelivery.Bulk(t.Context(), redelivery.BulkRequest{Kind: redelivery.JobRetry, Company: h.company})
	if err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	h.start()
	eventually(t, func() bool { return panics.Load() > 0 }, "the step panics")
	broken.Store(false)
	if job = h.completes(job.UUID); job.Changed != 1 {
		t.Errorf("%+v", job)
	}
}

// An outcome whose record cannot be encoded is quarantined alone. The other outcomes of the call are
// recorded.
func TestAnOutcomeThatCannotBeEncodedIsQuarantined(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	well := receive(t, nil)
	bad, good := h.subscribeTo(h.company, receive(t, nil).URL, "PAYMENT_FAILED"), h.subscribe(well.URL)
	repaired := h.breakEncoding(bad)
	failing, fine := h.emitType("PAYMENT_FAILED", 3), h.emit(50)
	h.start()
	h.reachAll(fine, good, delivery.StatusDelivered)
	eventually(t, func() bool { return len(h.quarantined()) == len(failing) }, "what cannot be encoded is quarantined")
	repaired.Store(true)
	h.retryQuarantined()
	h.reachAll(failing, bad, delivery.StatusDelivered)
	h.settled()
	well.once(t, fine)
}

// An event whose one outcome was quarantined is not settled by its later outcomes: the retry still sends
// what has no record.
func TestLaterOutcomesDoNotSettleAQuarantinedEvent(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	release := make(chan struct{})
	slow := h.subscribe(receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) { <-release; w.WriteHeader(http.StatusOK) }).URL)
	bad := h.subscribe(receive(t, nil).URL)
	repaired := h.breakEncoding(bad)
	ids := h.emit(1)
	h.start()
	eventually(t, func() bool { return len(h.quarantined()) == 1 }, "the event is quarantined")
	close(release)
	h.reachAll(ids, slow, delivery.StatusDelivered)
	repaired.Store(true)
	h.retryQuarantined()
	h.reachAll(ids, bad, delivery.StatusDelivered)
	h.settled()
}
