package servertls

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	reloads, failures *prometheus.CounterVec
	expiry, caExpiry  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		reloads: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_tls_reloads_total",
			Help: "New TLS files that came into use, by kind.",
		}, []string{"files"}),
		failures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_tls_reload_failures_total",
			Help: "New TLS files that were invalid, so that the old ones stay in use, by kind.",
		}, []string{"files"}),
		expiry: auto.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_tls_certificate_expiry_timestamp_seconds",
			Help: "When the server's certificate expires, in Unix time; 0 without one.",
		}),
		caExpiry: auto.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_tls_client_ca_expiry_timestamp_seconds",
			Help: "When the first CA of client certificates expires, in Unix time; 0 without one.",
		}),
	}
	for _, what := range []string{certificateFiles, bundleFile} {
		m.reloads.WithLabelValues(what)
		m.failures.WithLabelValues(what)
	}
	return m
}
