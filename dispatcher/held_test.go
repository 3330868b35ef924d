package dispatcher

import (
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"spendhook/dispatcher/delivery"
	"spendhook/subscribers"
)

// latencies counts the first successes that were observed with a held label.
func (h *harness) latencies(held string) uint64 {
	h.t.Helper()
	histogram, ok := h.metrics.latency.WithLabelValues(held).(prometheus.Histogram)
	if !ok {
		h.t.Fatal("the latency histogram is missing")
	}
	var m dto.Metric
	if err := histogram.Write(&m); err != nil {
		h.t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

// The latency metric separates deliveries that waited for their receiver, a rate limit or a
// pause from those that did not wait. Only the latter count for the delivery objective.
func TestLatencyIsLabelledByCauseOfDelay(t *testing.T) {
	t.Parallel()
	h := setup(t)
	well, failing := receive(t, nil), receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	limited, paused := receive(t, nil), receive(t, nil)
	s := h.subscribe(well.URL)
	f := h.subscribe(failing.URL)
	l := h.subscribe(limited.URL)
	h.update(l, subscribers.Settings{RateLimit: &subscribers.RateLimit{PerSecond: 100, Burst: 1}})
	p := h.subscribe(paused.URL)
	if err := h.opts.Subscribers.Pause(t.Context(), p.CompanyUUID, p.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(1)
	for _, one := range []subscribers.Subscriber{s, f, l} {
		h.reachAll(ids, one, delivery.StatusDelivered)
	}
	if err := h.opts.Subscribers.Resume(t.Context(), p.CompanyUUID, p.UUID); err != nil {
		t.Fatal(err)
	}
	h.reachAll(ids, p, delivery.StatusDelivered)
	eventually(t, func() bool {
		return h.latencies("none") == 1 && h.latencies(heldReceiver) == 1 && h.latencies("rate_limit") == 1 && h.latencies("paused") == 1
	}, "each delivery is observed once")
}
