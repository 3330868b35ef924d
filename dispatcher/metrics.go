package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/dispatcher/webhook"
)

// Why work was recovered.
const (
	reasonTakeover = "takeover" // a replica died with it in flight
	reasonLost     = "lost"     // the queue lost it
)

type metrics struct {
	attempts  *prometheus.CounterVec
	seconds   prometheus.Histogram
	latency   prometheus.Histogram
	postponed prometheus.Counter
	recovered *prometheus.CounterVec
	ended     *prometheus.CounterVec
	pending   prometheus.Gauge
	oldest    prometheus.Gauge
	dead      prometheus.Gauge
	tasks     *prometheus.GaugeVec
}

// newMetrics registers the dispatcher's metrics; every label value stands at
// zero from the start. None costs more to scrape with more subscribers.
func newMetrics(reg prometheus.Registerer, endpoints *endpoints, queues []string) *metrics {
	m := &metrics{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_delivery_attempts_total", Help: "Delivery attempts by outcome.",
		}, []string{"outcome"}),
		seconds: histogram("spendhook_delivery_attempt_seconds", "How long delivery attempts took."),
		latency: histogram("spendhook_delivery_latency_seconds", "From an event's acceptance to the first successful attempt of a delivery."),
		postponed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_deliveries_postponed_total", Help: "Times that a delivery was put off, uncounted, because its endpoint was busy or out of reach.",
		}),
		recovered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_sweeper_recovered_total", Help: "References handed out again after a crash or a lost queue.",
		}, []string{"reason"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_deliveries_total", Help: "Deliveries that reached a final status.",
		}, []string{"status"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_deliveries_pending", Help: "Events and deliveries waiting or in flight, in all replicas.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_oldest_pending_seconds", Help: "How long the oldest work that is due has been waiting or in flight.",
		}),
		dead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_dead_letters", Help: "Dead letters kept, in all companies.",
		}),
		tasks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_queue_tasks", Help: "Tasks in the asynq queues by state.",
		}, []string{"queue", "state"}),
	}
	m.zero(queues)
	reg.MustRegister(m.attempts, m.seconds, m.latency, m.postponed, m.recovered, m.ended,
		m.pending, m.oldest, m.dead, m.tasks, inFlightGauge(endpoints))
	for _, state := range []string{stateClosed, stateHalfOpen, stateOpen} {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spendhook_endpoints", Help: "Endpoints this replica has lately attempted, by state of their circuit breaker.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() float64 { return float64(endpoints.counts()[state]) }))
	}
	return m
}

func histogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help,
		Buckets:                         []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60, 300, 3600, 86400},
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	})
}

func inFlightGauge(e *endpoints) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_attempts_in_flight", Help: "Delivery attempts under way in this replica.",
	}, func() float64 { return float64(e.inFlight()) })
}

func (m *metrics) zero(queues []string) {
	for _, c := range webhook.ErrorClasses() {
		m.attempts.WithLabelValues(c.Outcome())
	}
	for _, r := range []string{reasonTakeover, reasonLost} {
		m.recovered.WithLabelValues(r)
	}
	for _, s := range []Status{StatusDelivered, StatusDead, StatusCancelled} {
		m.ended.WithLabelValues(string(s))
	}
	for _, q := range queues {
		m.queue(queueState{name: q})
	}
}

func (m *metrics) queue(q queueState) {
	m.tasks.WithLabelValues(q.name, "pending").Set(float64(q.pending))
	m.tasks.WithLabelValues(q.name, "active").Set(float64(q.active))
	m.tasks.WithLabelValues(q.name, "retry").Set(float64(q.retry))
	m.tasks.WithLabelValues(q.name, "scheduled").Set(float64(q.scheduled))
}

// written counts one recorded outcome.
func (m *metrics) written(o *outcome) {
	if o.next == nil {
		return
	}
	if !o.next.Status.Live() {
		m.ended.WithLabelValues(string(o.next.Status)).Inc()
	}
	if o.result == nil {
		return
	}
	m.attempts.WithLabelValues(o.result.Class.Outcome()).Inc()
	m.seconds.Observe(o.result.Duration.Seconds())
	if o.result.Success() && o.base.Reason != ReasonReplay && o.base.Reason != ReasonRecover {
		m.latency.Observe(max(0, o.result.StartedAt.Add(o.result.Duration).Sub(o.accepted).Seconds()))
	}
}
