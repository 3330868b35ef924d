package audit

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The labels of spendhook_audit_entries_total.
const (
	resultStored  = "stored"
	resultSpooled = "spooled"
	resultLost    = "lost"
)

type metrics struct {
	entries *prometheus.CounterVec
	cut     prometheus.Counter
	kept    atomic.Int64
}

func newMetrics(reg prometheus.Registerer, reports func() bool) *metrics {
	m := &metrics{
		entries: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_audit_entries_total",
			Help: "Audit entries by where they went: stored in Redis, spooled to a file until Redis is back, or lost (only logged).",
		}, []string{"result"}),
		cut: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "spendhook_audit_cut_total",
			Help: "Audit entries removed before their retention, because there were more than audit.max_entries.",
		}),
	}
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_audit_entries",
		Help: "Audit entries that are kept, shown by the owner of partition 0.",
	}, func() float64 {
		if reports != nil && !reports() {
			return 0
		}
		return float64(m.kept.Load())
	})
	for _, result := range []string{resultStored, resultSpooled, resultLost} {
		m.entries.WithLabelValues(result)
	}
	return m
}
