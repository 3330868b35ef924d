package dispatcher

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/endpoint"
	"spendhook/dispatcher/webhook"
	"spendhook/internal/pause"
)

type metrics struct {
	attempts     *prometheus.CounterVec
	duration     prometheus.Histogram
	latency      *prometheus.HistogramVec
	wait         *prometheus.HistogramVec
	waits        map[string]prometheus.Observer // those of wait, by reason
	queued       prometheus.Counter
	quarantined  prometheus.Counter
	filterErrors prometheus.Counter
	panics       prometheus.Counter
	compacted    prometheus.Counter
	ended        *prometheus.CounterVec
	pending      prometheus.Gauge
	oldest       prometheus.Gauge
	dead         prometheus.Gauge
	quarantine   prometheus.Gauge
	largest      *largest
}

// newMetrics registers the dispatcher's metrics; every label value stands at
// zero from the start. None costs more to scrape with more subscribers.
func newMetrics(reg prometheus.Registerer, admission *endpoint.Admission, recorderLag func() time.Duration) *metrics {
	m := &metrics{
		largest: newLargest(),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_delivery_attempts_total", Help: "Delivery attempts by outcome.",
		}, []string{"outcome"}),
		duration: histogram("spendhook_delivery_duration_seconds", "How long one delivery attempt took."),
		latency: prometheus.NewHistogramVec(histogramOpts("spendhook_delivery_latency_seconds",
			"From an event's acceptance to the first successful attempt of a delivery, by what held it meanwhile: nothing (none), a receiver that failed, was busy or asked for a pause (receiver), its rate limit (rate_limit), a pause of the subscriber (paused)."), []string{"held"}),
		wait: prometheus.NewHistogramVec(histogramOpts("spendhook_delivery_wait_seconds",
			"How long a delivery waited before an attempt, by what it waited for: its turn (queue), a place of its endpoint (endpoint_limit) or of its host (host_limit), its rate limit (rate_limit), a pause of the subscriber (paused), an endpoint that is out of reach (breaker), the schedule of retries (schedule)."), []string{"reason"}),
		waits: map[string]prometheus.Observer{},
		queued: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_deliveries_queued_total", Help: "Deliveries appended to their endpoint queue since the endpoint had no place in memory or was out of reach.",
		}),
		quarantined: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_quarantined_total", Help: "Events and deliveries that could not be read and were quarantined.",
		}),
		filterErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_filter_errors_total", Help: "Filters of subscribers that failed on an event, which did not match it then.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_panics_total", Help: "Errors in our code that panicked while work was matched, attempted or recorded, and were contained.",
		}),
		compacted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "spendhook_events_compacted_total", Help: "Settled events of which only a digest was kept.",
		}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_deliveries_total", Help: "Deliveries that reached a final status.",
		}, []string{"status"}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_events_pending", Help: "Events that are not settled, in the partitions this replica owns.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_oldest_pending_seconds", Help: "How long the oldest work has waited that is due and that its receiver does not hold, in the partitions this replica owns.",
		}),
		dead: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_dead_letters", Help: "Dead letters kept, in the partitions this replica owns.",
		}),
		quarantine: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_quarantined", Help: "Events and deliveries in the quarantine, in the partitions this replica owns.",
		}),
	}
	for _, reason := range []string{waitQueue, waitLimit, waitHost, waitRate, waitBreaker, waitPaused, waitSchedule} {
		m.waits[reason] = m.wait.WithLabelValues(reason)
	}
	for _, held := range []string{heldNone, heldReceiver, heldRate, heldPaused} {
		m.latency.WithLabelValues(held)
	}
	for _, c := range webhook.ErrorClasses() {
		m.attempts.WithLabelValues(c.Outcome())
	}
	for _, s := range []delivery.Status{delivery.StatusDelivered, delivery.StatusDead, delivery.StatusCancelled} {
		m.ended.WithLabelValues(string(s))
	}
	reg.MustRegister(m.attempts, m.duration, m.latency, m.wait, m.queued, m.quarantined, m.filterErrors, m.panics, m.compacted, m.ended, m.pending, m.oldest, m.dead, m.quarantine, m.largest)
	for _, g := range []struct {
		name, help string
		labels     prometheus.Labels
		value      func(endpoint.Counts) int
	}{
		{"spendhook_attempts_in_flight", "Delivery attempts under way in this replica.", nil, func(c endpoint.Counts) int { return c.InFlight }},
		{"spendhook_deliveries_held", "Deliveries in this replica's memory: in flight, waiting, or to be recorded.", nil, func(c endpoint.Counts) int { return c.Held }},
		{"spendhook_endpoints", endpointsHelp, prometheus.Labels{"state": "closed"}, func(c endpoint.Counts) int { return c.Closed }},
		{"spendhook_endpoints", endpointsHelp, prometheus.Labels{"state": "half_open"}, func(c endpoint.Counts) int { return c.HalfOpen }},
		{"spendhook_endpoints", endpointsHelp, prometheus.Labels{"state": "open"}, func(c endpoint.Counts) int { return c.Open }},
	} {
		reg.MustRegister(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: g.name, Help: g.help, ConstLabels: g.labels}, //nolint:promlinter // the names stand above
			func() float64 { return float64(g.value(admission.Counts())) },
		))
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_recorder_lag_seconds", Help: "For how long this replica has tried to write outcomes that Redis has not taken yet, in the shard where that is longest; 0: none wait.",
	}, func() float64 { return recorderLag().Seconds() }))
	return m
}

const endpointsHelp = "Endpoints this replica has lately attempted, by state of their circuit breaker."

func histogram(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(histogramOpts(name, help))
}

func histogramOpts(name, help string) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help,
		Buckets:                         []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60, 300, 3600, 86400},
		NativeHistogramBucketFactor:     1.1,
		NativeHistogramMaxBucketNumber:  100,
		NativeHistogramMinResetDuration: time.Hour,
	}
}

// What a delivery waits for.
const (
	waitQueue    = "queue"
	waitLimit    = "endpoint_limit"
	waitHost     = "host_limit"
	waitRate     = "rate_limit"
	waitPaused   = "paused"
	waitBreaker  = "breaker"
	waitSchedule = "schedule"
)

// waited observes how long a delivery waited whose attempt begins, and returns it.
func (m *metrics) waited(w *work, now time.Time) (waited attempt.Waited) {
	observe := func(reason string, d time.Duration) {
		m.waits[reason].Observe(max(0, d.Seconds()))
		waited.Add(reason, d)
	}
	if w.event != nil {
		observe(waitQueue, w.entered.Sub(w.accepted))
		observe(waitLimit, now.Sub(w.entered))
		return waited
	}
	reason := waitSchedule
	switch w.base.Reason {
	case delivery.ReasonBusy, delivery.ReasonOrder:
		reason = waitLimit
	case delivery.ReasonHostBusy:
		reason = waitHost
	case delivery.ReasonRateLimit, delivery.ReasonRetryAfter:
		reason = waitRate
	case delivery.ReasonPaused:
		reason = waitPaused
	case delivery.ReasonUnreachable:
		reason = waitBreaker
	}
	observe(reason, now.Sub(time.UnixMilli(w.base.Updated)))
	return waited
}

// What held a delivery between the acceptance of its event and its success.
const (
	heldNone     = "none"
	heldReceiver = "receiver"
	heldRate     = "rate_limit"
	heldPaused   = "paused"
)

// placeWait is how long a delivery may wait in memory for a place of its endpoint
// before the wait counts as caused by the receiver.
const placeWait = time.Second

// heldBy returns the cause of the delay of a delivery that has succeeded.
func (d *Dispatcher) heldBy(o *outcome) string {
	switch {
	case len(o.base.Attempts) > 0:
		return heldReceiver
	case o.event != nil:
		if o.result.StartedAt.Sub(o.entered) > placeWait || d.queue.PassedSince(o.ref.Company, o.accepted) {
			return heldReceiver
		}
		return heldNone
	}
	switch o.base.Reason {
	case delivery.ReasonRateLimit:
		return heldRate
	case delivery.ReasonPaused:
		return heldPaused
	case delivery.ReasonBusy, delivery.ReasonHostBusy, delivery.ReasonOrder, delivery.ReasonRetryAfter, delivery.ReasonUnreachable:
		return heldReceiver
	}
	return heldNone
}

// written counts one recorded outcome.
func (m *metrics) written(o *outcome, heldBy func(*outcome) string) {
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
	m.duration.Observe(o.result.Duration.Seconds())
	if o.result.Success() && o.base.Reason != delivery.ReasonReplay && o.base.Reason != delivery.ReasonRecover {
		m.latency.WithLabelValues(heldBy(o)).Observe(max(0, o.result.StartedAt.Add(o.result.Duration).Sub(o.accepted).Seconds()))
	}
}

// gaugesEvery is how often the gauges of shared state are read.
const gaugesEvery = 10 * time.Second

// runGauges reads what metrics show of Redis, so that a scrape need not.
func (d *Dispatcher) runGauges(ctx context.Context) {
	for {
		if err := d.readGauges(ctx); err != nil && ctx.Err() == nil {
			d.opts.Logger.Error("gauges not read", "exception.message", err)
		}
		if !pause.For(ctx, gaugesEvery) {
			return
		}
	}
}

func (d *Dispatcher) readGauges(ctx context.Context) error {
	owned := d.queue.Owned()
	dead, err := d.deliveries.PurgeDead(ctx, d.opts.Now(), owned)
	if err != nil {
		return err
	}
	backlog, err := d.backlog.Measure(ctx, owned)
	if err != nil {
		return err
	}
	d.metrics.dead.Set(float64(dead))
	d.metrics.pending.Set(float64(backlog.Pending))
	d.metrics.oldest.Set(backlog.OldestDue.Seconds())
	d.metrics.quarantine.Set(float64(backlog.Quarantined))
	if d.opts.TopCompanies <= 0 {
		return nil
	}
	largest, err := d.backlog.Largest(ctx, backlog, d.opts.TopCompanies)
	if err != nil {
		return err
	}
	d.metrics.largest.set(largest)
	return nil
}
