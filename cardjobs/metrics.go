package cardjobs

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	items       *prometheus.CounterVec
	failures    prometheus.Counter
	itemSeconds prometheus.Histogram
	jobSeconds  prometheus.Histogram
	unfinished  atomic.Int64
}

// newMetrics registers the metrics, with every label value at zero. An item is counted by the
// replica whose transaction ended it.
func newMetrics(reg prometheus.Registerer, reports func() bool) *metrics {
	with := promauto.With(reg)
	m := &metrics{
		items: with.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_card_items_total",
			Help: "Items of bulk card creations by outcome: created or error when their event was published, refused when it never will be.",
		}, []string{"outcome"}),
		failures: with.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_card_item_failures_total", Help: "Failed attempts to process an item of a bulk card creation; the item is tried again.",
		}),
		itemSeconds: histogram(with, "spendhook_card_item_seconds", "Time to process an item of a bulk card creation."),
		jobSeconds:  histogram(with, "spendhook_card_job_seconds", "Time from the start of a bulk card creation to its last outcome."),
	}
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_card_items_unfinished", Help: "Items of bulk card creations without an outcome, shown by the owner of partition 0.",
	}, func() float64 {
		if reports != nil && !reports() {
			return 0
		}
		return float64(m.unfinished.Load())
	})
	for _, o := range []string{itemCreated, itemError, itemRefused} {
		m.items.WithLabelValues(o)
	}
	return m
}

const (
	itemCreated = "created"
	itemError   = "error"
	itemRefused = "refused"
)

func histogram(with promauto.Factory, name, help string) prometheus.Histogram {
	return with.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help,
		Buckets:                         []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600},
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	})
}
