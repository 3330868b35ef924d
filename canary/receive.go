package canary

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/subscribers"
)

const (
	maxBody   = 4 << 10         // bytes; an event of the canary has some 200
	tolerance = 5 * time.Minute // of webhook-timestamp, as receivers have it
)

type metrics struct {
	arrival  prometheus.Gauge
	latency  prometheus.Histogram
	failures prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) metrics {
	f := promauto.With(reg)
	return metrics{
		arrival: f.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_canary_last_arrival_timestamp_seconds",
			Help: "When an event of the canary last arrived at this replica, in Unix time; 0 if none did since its start. Take the maximum over the replicas. Exists only with canary.company, as all metrics of the canary.",
		}),
		latency: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "spendhook_canary_latency_seconds",
			Help:    "Time from the emission of an event of the canary to its arrival, by the clocks of both replicas.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_canary_failures_total",
			Help: "Events of the canary that this replica could not emit.",
		}),
	}
}

// ServeHTTP receives deliveries to the canary's subscriber. Without a valid signature it answers 401.
func (c *Canary) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(signature.HeaderSignature) == "" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	sub, err := c.subscriber(ctx)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable) // the delivery is repeated
	case sub == nil || !verified(sub, r.Header, body, c.opts.Now()):
		w.WriteHeader(http.StatusUnauthorized)
	default:
		c.note(body)
		w.WriteHeader(http.StatusNoContent)
	}
}

func verified(sub *subscribers.Subscriber, header http.Header, body []byte, now time.Time) bool {
	for _, s := range sub.Secrets {
		expired := s.ExpiresAt != nil && !now.Before(*s.ExpiresAt)
		if !expired && signature.Verify(s.Key.Reveal(), header, body, tolerance, now) == nil {
			return true
		}
	}
	return false
}

// note records an arrival. Others can send signed messages too, such as test deliveries, but not with the canary's ids.
func (c *Canary) note(body []byte) {
	e, err := events.ParseBody(body)
	if err != nil || !strings.HasPrefix(e.ID, idPrefix) {
		return
	}
	now := c.opts.Now()
	c.metrics.arrival.Set(float64(now.UnixMilli()) / 1000)
	c.metrics.latency.Observe(max(0, now.Sub(e.Timestamp).Seconds()))
}
