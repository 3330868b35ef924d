package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics are those of all sources of a relay.
type Metrics struct {
	records  *prometheus.CounterVec
	refusals *prometheus.CounterVec
	up       *prometheus.GaugeVec
	active   *prometheus.GaugeVec
	behind   *prometheus.GaugeVec
	oldest   *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	with, source := promauto.With(registerer), []string{"source"}
	return &Metrics{
		records: with.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_relay_records_total",
			Help: "Records with an outcome, by result: accepted, duplicate (accepted before), dead (can never be accepted).",
		}, []string{"source", "result"}),
		refusals: with.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_relay_refusals_total",
			Help: "Requests in which the daemon refused events for a reason that passes, or did not answer. The events are sent again.",
		}, source),
		up: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_relay_up",
			Help: "1 while the source is open and answers, also if another relay reads it; 0 after a fault, until the source is open again.",
		}, source),
		active: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_relay_active",
			Help: "1 while this relay reads the source; 0 while it does not, since another one does or after a fault.",
		}, source),
		behind: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_relay_lag_records",
			Help: "Records that the source still has, by partition.",
		}, []string{"source", "partition"}),
		oldest: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_relay_oldest_record_timestamp_seconds",
			Help: "Time of the oldest record that was read and has no outcome; 0: there is none.",
		}, source),
	}
}

// source sets the metrics of a source to zero.
func (m *Metrics) source(name string) {
	for _, result := range []string{"accepted", "duplicate", "dead"} {
		m.records.WithLabelValues(name, result)
	}
	m.refusals.WithLabelValues(name)
	for _, gauge := range []*prometheus.GaugeVec{m.up, m.active, m.oldest} {
		gauge.WithLabelValues(name).Set(0)
	}
}

func (m *Metrics) setBehind(name string, behind map[string]int64) {
	m.behind.DeletePartialMatch(prometheus.Labels{"source": name})
	for partition, n := range behind {
		m.behind.WithLabelValues(name, partition).Set(float64(n))
	}
}

func (m *Metrics) setOldest(name string, at time.Time) {
	value := 0.0
	if !at.IsZero() {
		value = float64(at.UnixMilli()) / 1000
	}
	m.oldest.WithLabelValues(name).Set(value)
}
