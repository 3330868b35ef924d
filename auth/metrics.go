package auth

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts what becomes of token requests, and how the keys of other
// issuers are kept. It is safe for concurrent use.
type Metrics struct {
	reg      prometheus.Registerer
	tokens   *prometheus.CounterVec
	failures *prometheus.CounterVec
	age      *prometheus.GaugeVec
}

const issued = "issued"

// NewMetrics registers the metrics with reg; nil counts unseen.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		reg: reg,
		tokens: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_token_requests_total",
			Help: "Requests to the token endpoint: issued, or why not.",
		}, []string{"result"}),
		failures: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_jwks_refresh_failures_total",
			Help: "Times that the keys of another issuer could not be fetched.",
		}, []string{"issuer"}),
		age: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_jwks_fetched_timestamp_seconds",
			Help: "When the keys of another issuer were last fetched, in unix time; 0: never.",
		}, []string{"issuer"}),
	}
	for _, result := range append(refusalCodes(), issued) {
		m.tokens.WithLabelValues(result)
	}
	return m
}

// watchKeys shows since when the signing key has signed.
func (m *Metrics) watchKeys(k *Keys) {
	promauto.With(m.reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_token_key_age_seconds",
		Help: "How long the key that signs access tokens has done so.",
	}, func() float64 { return k.opts.Now().Sub(k.signingSince()).Seconds() })
}

// watchIssuer shows an issuer before anything happens to it.
func (m *Metrics) watchIssuer(issuer string) {
	m.failures.WithLabelValues(issuer)
	m.age.WithLabelValues(issuer)
}

func (m *Metrics) fetched(issuer string, at time.Time) {
	m.age.WithLabelValues(issuer).Set(float64(at.Unix()))
}
