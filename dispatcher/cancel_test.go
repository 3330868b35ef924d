package dispatcher

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/internal/redistest"
)

// Bad events are out of the way in one command: what waits is cancelled, and what is under way, once it fails.
func TestDeliveriesThatMatchAreCancelled(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) {
		o.Sender = testSender(10 * time.Minute) // no attempt times out
		o.Policy.Schedule = []time.Duration{20 * time.Millisecond, time.Hour}
	})
	h.start()
	gate := make(chan struct{})
	var seen sync.Map
	slow := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if _, again := seen.LoadOrStore(r.Header.Get("webhook-id"), true); again {
			<-gate
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	failing, paused := h.subscribeTo(h.company, slow.URL, "BAD", "GOOD"), h.subscribeTo(h.company, receive(t, nil).URL, "BAD", "GOOD")
	if err := h.opts.Subscribers.Pause(t.Context(), h.company, paused.UUID); err != nil {
		t.Fatal(err)
	}
	bad, good := h.emitType("BAD", 3), h.emitType("GOOD", 2)
	h.reachAll(append(bad, good...), failing, delivery.StatusDelivering)
	h.reachAll(append(bad, good...), paused, delivery.StatusPending)

	request := redelivery.BulkRequest{Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}}, DryRun: true}
	counted, err := h.Redelivery.Bulk(t.Context(), request)
	if err != nil || counted.Changed != 3 || counted.Status != redelivery.JobCompleted {
		t.Errorf("counted %+v, %v", counted, err)
	}
	request.DryRun = false
	job, err := h.Redelivery.Bulk(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	h.reachAll(bad, paused, delivery.StatusCancelled)
	if job, err = h.Redelivery.Job(t.Context(), h.company, job.UUID); err != nil || job.FinishedAt != nil {
		t.Errorf("%+v, %v: it does not wait for attempts", job, err)
	}
	close(gate)
	h.reachAll(bad, failing, delivery.StatusCancelled)
	if job = h.completes(job.UUID); job.Changed != 6 || job.Examined != 6 {
		t.Errorf("%+v", job)
	}
	if d := h.deliveryOf(bad[0], failing); d.Reason != delivery.ReasonDropped || d.Count != 2 {
		t.Errorf("%+v", d.Record)
	}
	h.reachAll(good, failing, delivery.StatusRetrying)
	h.reachAll(good, paused, delivery.StatusPending)

	request.Filter.Statuses = []delivery.Status{delivery.StatusPending, delivery.StatusDead}
	if _, err := h.Redelivery.Bulk(t.Context(), request); !errors.Is(err, redelivery.ErrEnded) {
		t.Errorf("of dead letters: %v", err)
	}
	h.enable(paused, false)
	request.Filter = store.Filter{Subscriber: &paused.UUID}
	if job, err = h.Redelivery.Bulk(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if job = h.completes(job.UUID); job.Changed != 2 {
		t.Errorf("of a disabled subscriber: %+v", job)
	}
	if _, err := h.Redelivery.Retry(t.Context(), h.company, bad[0]+"."+failing.UUID.String()); err != nil {
		t.Errorf("sent after all: %v", err)
	}
}
