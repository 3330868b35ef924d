package auth

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics show how the keys of other issuers are kept.
type metrics struct {
	failures *prometheus.CounterVec
	age      *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
		failures: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_jwks_refresh_failures_total",
			Help: "Failed fetches of the keys of another issuer.",
		}, []string{"issuer"}),
		age: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_jwks_fetched_timestamp_seconds",
			Help: "When the keys of another issuer were last fetched, in Unix time; 0 means never.",
		}, []string{"issuer"}),
	}
}

// watch shows an issuer before anything happens to it.
func (m *metrics) watch(issuer string) {
	m.failures.WithLabelValues(issuer)
	m.age.WithLabelValues(issuer)
}

func (m *metrics) fetched(issuer string, at time.Time) {
	m.age.WithLabelValues(issuer).Set(float64(at.Unix()))
}
