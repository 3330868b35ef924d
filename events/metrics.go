package events

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts events by what became of them. It is safe for concurrent use.
type Metrics struct {
	accepted, duplicate, conflict, backlogFull, storageFull, memoryFull, invalid, unavailable prometheus.Counter
}

// NewMetrics registers the counters with reg; nil counts unseen.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	events := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_events_total",
		Help: "Events submitted, by result: storage_full when the company holds its share of Redis's memory, memory_full when Redis has none left for anybody.",
	}, []string{"result"})
	return &Metrics{
		accepted:    events.WithLabelValues("accepted"),
		duplicate:   events.WithLabelValues("duplicate"),
		conflict:    events.WithLabelValues("conflict"),
		backlogFull: events.WithLabelValues("backlog_full"),
		storageFull: events.WithLabelValues("storage_full"),
		memoryFull:  events.WithLabelValues("memory_full"),
		invalid:     events.WithLabelValues("invalid"),
		unavailable: events.WithLabelValues("unavailable"),
	}
}

func (m *Metrics) count(results []Result) {
	for _, r := range results {
		m.counter(r).Inc()
	}
}

func (m *Metrics) counter(r Result) prometheus.Counter {
	switch {
	case errors.Is(r.Err, ErrConflict):
		return m.conflict
	case errors.Is(r.Err, ErrBacklogFull):
		return m.backlogFull
	case errors.Is(r.Err, errMemoryFull):
		return m.memoryFull
	case errors.Is(r.Err, ErrStorageFull):
		return m.storageFull
	case errors.Is(r.Err, ErrUnavailable):
		return m.unavailable
	case r.Err != nil:
		return m.invalid
	case r.Status == Duplicate:
		return m.duplicate
	default:
		return m.accepted
	}
}
