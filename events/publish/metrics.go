package publish

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics counts submitted events by result. It is safe for concurrent use.
type metrics struct {
	accepted, duplicate, conflict, backlogFull, storageFull, memoryFull, invalid, unavailable prometheus.Counter
}

// newMetrics registers the counters with reg, if not nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	counters := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_events_total",
		Help: "Events submitted, by result: storage_full when the company holds its share of Redis's memory, memory_full when Redis has none left for any company.",
	}, []string{"result"})
	return &metrics{
		accepted:    counters.WithLabelValues("accepted"),
		duplicate:   counters.WithLabelValues("duplicate"),
		conflict:    counters.WithLabelValues("conflict"),
		backlogFull: counters.WithLabelValues("backlog_full"),
		storageFull: counters.WithLabelValues("storage_full"),
		memoryFull:  counters.WithLabelValues("memory_full"),
		invalid:     counters.WithLabelValues("invalid"),
		unavailable: counters.WithLabelValues("unavailable"),
	}
}

// count counts the results of a call of Accept that did not fail.
func (m *metrics) count(results []Result) {
	for _, r := range results {
		m.counter(r).Inc()
	}
}

func (m *metrics) counter(r Result) prometheus.Counter {
	switch {
	case errors.Is(r.Err, ErrConflict):
		return m.conflict
	case errors.Is(r.Err, ErrBacklogFull):
		return m.backlogFull
	case errors.Is(r.Err, errMemoryFull):
		return m.memoryFull
	case errors.Is(r.Err, ErrStorageFull):
		return m.storageFull
	case r.Err != nil:
		return m.invalid
	case r.Status == Duplicate:
		return m.duplicate
	default:
		return m.accepted
	}
}
