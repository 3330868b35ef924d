package dispatcher

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/internal/redistest"
)

// Bad events are out of the way in one command: what waits is cancelled, and what is under way, once it has failed.
func TestDeliveriesThatMatchAreCancelled(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) {
		o.Sender = testSender(2 * time.Second)
		o.Policy.Schedule = []time.Duration{time.Hour}
	})
	h.start()
	silent := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	failing, paused := h.subscribeTo(h.company, silent.URL, "BAD", "GOOD"), h.subscribeTo(h.company, receive(t, nil).URL, "BAD", "GOOD")
	if err := h.opts.Subscribers.Pause(t.Context(), h.company, paused.UUID); err != nil {
		t.Fatal(err)
	}
	bad, good := h.emitType("BAD", 3), h.emitType("GOOD", 2)
	h.reachAll(append(bad, good...), paused, delivery.StatusPending)
	eventually(t, func() bool { return silent.count() == 5 }, "all attempts are under way")

	request := redelivery.BulkRequest{Kind: redelivery.JobCancel, Company: h.company, Filter: store.Filter{EventTypes: []string{"BAD"}}}
	job, err := h.Redelivery.Bulk(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	h.reachAll(bad, paused, delivery.StatusCancelled)
	h.reachAll(bad, failing, delivery.StatusCancelled)
	if job = h.completes(job.UUID); job.Changed != 6 {
		t.Errorf("%+v", job)
	}
	if d := h.deliveryOf(bad[0], failing); d.Reason != delivery.ReasonDropped || d.Count != 1 {
		t.Errorf("%+v", d.Record)
	}
	h.reachAll(good, failing, delivery.StatusRetrying)
	h.reachAll(good, paused, delivery.StatusPending)

	for status, want := range map[delivery.Status]int64{delivery.StatusPending: 2, delivery.StatusRetrying: 2, "": 4} {
		request := redelivery.BulkRequest{Kind: redelivery.JobCancel, Company: h.company, DryRun: true}
		if status != "" {
			request.Filter.Statuses = []delivery.Status{status}
		}
		if counted, err := h.Redelivery.Bulk(t.Context(), request); err != nil || counted.Changed != want || counted.Status != redelivery.JobCompleted {
			t.Errorf("%s: %+v, %v", status, counted, err)
		}
	}
	request.Filter.Statuses = []delivery.Status{delivery.StatusPending, delivery.StatusDelivering}
	if _, err := h.Redelivery.Bulk(t.Context(), request); !errors.Is(err, redelivery.ErrNotWaiting) {
		t.Errorf("of what is under way: %v", err)
	}
	h.enable(paused, false)
	request.Filter = store.Filter{Subscriber: &paused.UUID}
	if _, err = h.Redelivery.Bulk(t.Context(), request); err != nil {
		t.Errorf("of a disabled subscriber: %v", err)
	}
	h.reachAll(good, paused, delivery.StatusCancelled)
	if _, err := h.Redelivery.Retry(t.Context(), h.company, bad[0]+"."+failing.UUID.String()); err != nil {
		t.Errorf("sent after all: %v", err)
	}
}
