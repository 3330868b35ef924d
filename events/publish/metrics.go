package publish

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics counts submitted events by result. It is safe for concurrent use.
type metrics map[string]prometheus.Counter

// newMetrics registers the counters with reg, if not nil.
func newMetrics(reg prometheus.Registerer) metrics {
	counters := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_events_total",
		Help: "Events submitted, by result: storage_full when the company holds its share of Redis's memory, memory_full when Redis has none left for any company.",
	}, []string{"result"})
	m := metrics{}
	for _, result := range []string{"accepted", "duplicate", "conflict", "backlog_full", "storage_full", "memory_full", "invalid", "unavailable"} {
		m[result] = counters.WithLabelValues(result)
	}
	return m
}

// count counts the results of a call of Accept that did not fail.
func (m metrics) count(results []Result) {
	for _, r := range results {
		m[label(r)].Inc()
	}
}

func label(r Result) string {
	switch {
	case errors.Is(r.Err, ErrConflict):
		return "conflict"
	case errors.Is(r.Err, ErrBacklogFull):
		return "backlog_full"
	case errors.Is(r.Err, errMemoryFull):
		return "memory_full"
	case errors.Is(r.Err, ErrStorageFull):
		return "storage_full"
	case r.Err != nil:
		return "invalid"
	case r.Status == Duplicate:
		return "duplicate"
	}
	return "accepted"
}
