package dispatcher

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/endpoint"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/internal/pause"
)

type metrics struct {
	attempts     *prometheus.CounterVec
	duration     prometheus.Histogram
	latency      *prometheus.HistogramVec
	wait         *prometheus.HistogramVec
	queued       prometheus.Counter
	quarantined  prometheus.Counter
	filterErrors prometheus.Counter
	compacted    prometheus.Counter
	history      prometheus.Counter
	behind       prometheus.Gauge
	linked       prometheus.Counter // deliveries that name the event before
	unlinked     prometheus.Counter
	ended        *prometheus.CounterVec
	jobSteps     *prometheus.CounterVec
	pending      prometheus.Gauge
	oldest       prometheus.Gauge
	dead         prometheus.Gauge
	quarantine   prometheus.Gauge
	largest      *prometheus.GaugeVec
}

// newMetrics registers the dispatcher's metrics, each label value with 0. No label names a subscriber, so
// the number of subscribers does not affect a scrape.
func newMetrics(reg prometheus.Registerer, admission *endpoint.Admission, recorderLag func() time.Duration) *metrics {
	factory := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return factory.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		attempts: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_delivery_attempts_total", Help: "Delivery attempts by outcome.",
		}, []string{"outcome"}),
		duration: factory.NewHistogram(histogramOpts("spendhook_delivery_duration_seconds", "How long one delivery attempt took.")),
		latency: factory.NewHistogramVec(histogramOpts("spendhook_delivery_latency_seconds",
			"Time from the acceptance of an event to the first successful attempt of a delivery, by what held the delivery: nothing (none), a receiver that failed, was busy or asked for a pause (receiver), a rate limit (rate_limit), a pause of the subscriber (paused)."), []string{"held"}),
		wait: factory.NewHistogramVec(histogramOpts("spendhook_delivery_wait_seconds",
			"Time that a delivery waited before an attempt, by what it waited for: its turn (queue), the in-flight limit or the order of its endpoint (endpoint_limit), the in-flight limit of its host (host_limit), a rate limit or Retry-After (rate_limit), a pause of the subscriber (paused), an open breaker (breaker), the schedule of retries (schedule)."), []string{"reason"}),
		queued:       counter("spendhook_deliveries_queued_total", "Deliveries appended to their retry set because the endpoint had no place in memory or could not be reached."),
		quarantined:  counter("spendhook_quarantined_total", "Events, deliveries and subscribers that could not be read and were quarantined."),
		filterErrors: counter("spendhook_filter_errors_total", "Evaluations of a filter or of orderedBy that failed; the event then does not match, or is delivered in any order."),
		compacted:    counter("spendhook_events_compacted_total", "Settled events that were compacted to a digest."),
		history:      counter("spendhook_history_events_total", "Settled events that were written to the history; an event counts again when its deliveries were repeated."),
		behind:       gauge("spendhook_history_lag_seconds", "How long the oldest settled event waits to be written to the history, in the partitions this replica owns; 0 when none waits."),
		ended: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_deliveries_total", Help: "Deliveries that reached a final status.",
		}, []string{"status"}),
		jobSteps: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_job_steps_total", Help: "Steps of jobs over many deliveries, by result: continued, the job goes on or waits; completed, it has ended; failed, it is tried again.",
		}, []string{"result"}),
		pending:    gauge("spendhook_events_pending", "Events that are not settled, in the partitions this replica owns."),
		oldest:     gauge("spendhook_oldest_pending_seconds", "Wait of the oldest due work, or of work that is started and put back again and again, except work that a receiver, a rate limit or a pause holds, in the partitions this replica owns."),
		dead:       gauge("spendhook_dead_letters", "Dead letters kept, in the partitions this replica owns."),
		quarantine: gauge("spendhook_quarantined", "Events, deliveries and subscribers in the quarantine, in the partitions this replica owns."),
		largest: factory.NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_company_backlog", Help: "Pending events of the companies with the largest backlogs, at most metrics.top_companies in the partitions this replica owns.",
		}, []string{"company"}),
	}
	matched := factory.NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_deliveries_matched_total", Help: "Deliveries of events that were matched, by whether they name the event before (webhook-previous): named, or unknown, after which a receiver that fills gaps reads the feed.",
	}, []string{"previous"})
	m.linked, m.unlinked = matched.WithLabelValues("named"), matched.WithLabelValues("unknown")
	m.wait.WithLabelValues(waitQueue)
	for _, c := range append(slices.Collect(maps.Values(causes)), otherCause) {
		m.wait.WithLabelValues(c.wait)
		m.latency.WithLabelValues(c.held)
	}
	for _, c := range attempt.ErrorClasses() {
		m.attempts.WithLabelValues(c.Outcome())
	}
	for _, s := range []delivery.Status{delivery.StatusDelivered, delivery.StatusDead, delivery.StatusCancelled} {
		m.ended.WithLabelValues(string(s))
	}
	for _, result := range []string{stepContinued, stepCompleted, stepFailed} {
		m.jobSteps.WithLabelValues(result)
	}
	current := func(name, help string, value func() float64) {
		factory.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	endpoints := func(state string, value func() float64) {
		factory.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spendhook_endpoints", Help: "Endpoints that this replica recently attempted, by state of their circuit breaker: open; slowed, closed with a load that grows again after an outage or a 429; closed.",
			ConstLabels: prometheus.Labels{"state": state},
		}, value)
	}
	current("spendhook_attempts_in_flight", "Delivery attempts under way in this replica.", func() float64 { return float64(admission.Counts().InFlight) })
	current("spendhook_deliveries_held", "Deliveries in this replica's memory: in flight, waiting, or to be recorded.", func() float64 { return float64(admission.Counts().Held) })
	current("spendhook_recorder_lag_seconds", "How long this replica has tried to write outcomes that Redis has not taken yet, in the slowest shard; 0 means that none wait.", func() float64 { return recorderLag().Seconds() })
	endpoints("closed", func() float64 { c := admission.Counts(); return float64(c.Closed - c.Slowed) })
	endpoints("slowed", func() float64 { return float64(admission.Counts().Slowed) })
	endpoints("open", func() float64 { return float64(admission.Counts().Open) })
	return m
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

// cause is why a delivery was in its retry set, as labels of metrics: wait for the time before an
// attempt, held for the time from the acceptance of its event to its success.
type cause struct{ wait, held string }

const (
	waitQueue    = "queue"
	waitLimit    = "endpoint_limit"
	heldReceiver = "receiver"
)

// causes maps the reason of a delivery to a cause. All other reasons have otherCause.
var (
	causes = map[string]cause{
		delivery.ReasonBusy:        {waitLimit, heldReceiver},
		delivery.ReasonOrder:       {waitLimit, heldReceiver},
		delivery.ReasonHostBusy:    {"host_limit", heldReceiver},
		delivery.ReasonRateLimit:   {"rate_limit", "rate_limit"},
		delivery.ReasonRetryAfter:  {"rate_limit", heldReceiver},
		delivery.ReasonPaused:      {"paused", "paused"},
		delivery.ReasonUnreachable: {"breaker", heldReceiver},
	}
	otherCause = cause{"schedule", "none"}
)

func causeOf(reason string) cause { return cmp.Or(causes[reason], otherCause) }

// waited observes and returns how long a delivery has waited for the attempt that begins.
func (m *metrics) waited(w *work, now time.Time) (waited attempt.Waited) {
	observe := func(reason string, d time.Duration) {
		m.wait.WithLabelValues(reason).Observe(max(0, d.Seconds()))
		waited.Add(reason, d)
	}
	if w.event != nil {
		observe(waitQueue, w.entered.Sub(w.accepted))
		observe(waitLimit, now.Sub(w.entered))
	} else {
		observe(causeOf(w.base.Reason).wait, now.Sub(time.UnixMilli(w.base.Updated)))
	}
	return waited
}

// placeWait is how long a delivery may wait in memory for a place of its endpoint
// before the wait counts as caused by the receiver.
const placeWait = time.Second

// heldBy returns the cause of the delay of a delivery that has succeeded.
func (d *Dispatcher) heldBy(o *outcome) string {
	direct := o.event != nil
	switch {
	case len(o.base.Attempts) > 0,
		direct && (o.result.StartedAt.Sub(o.entered) > placeWait || d.Queue.SkippedSince(o.ref.Company, o.accepted)):
		return heldReceiver
	case direct:
		return otherCause.held
	}
	return causeOf(o.base.Reason).held
}

// measure counts an outcome that was written.
func (d *Dispatcher) measure(o *outcome) {
	m := d.metrics
	if o.ended() {
		m.ended.WithLabelValues(string(o.next.Status)).Inc()
	}
	if o.result == nil {
		return
	}
	m.attempts.WithLabelValues(o.result.Class.Outcome()).Inc()
	m.duration.Observe(o.result.Duration.Seconds())
	if o.result.Success() && o.base.Reason != delivery.ReasonReplay && o.base.Reason != delivery.ReasonRecover {
		m.latency.WithLabelValues(d.heldBy(o)).Observe(max(0, o.result.StartedAt.Add(o.result.Duration).Sub(o.accepted).Seconds()))
	}
}

const gaugesEvery = 10 * time.Second

// runGauges sets the gauges from Redis every gaugesEvery, so that a scrape does not wait for Redis.
func (d *Dispatcher) runGauges(ctx context.Context) {
	var last backlog.Total
	for {
		if err := d.readGauges(ctx, d.Queue.Owned(), &last); err != nil && ctx.Err() == nil {
			d.opts.Logger.Error("gauges not read", "exception.message", err)
		}
		if !pause.For(ctx, gaugesEvery) {
			return
		}
	}
}

// readGauges sets the gauges from the partitions that this replica owns. The last values of a
// partition stay in the gauges while its shard is unreachable.
func (d *Dispatcher) readGauges(ctx context.Context, owned []int, last *backlog.Total) error {
	total, err := d.Backlog.Measure(ctx, owned, d.opts.TopCompanies)
	total.Keep(*last, owned)
	*last = total
	d.metrics.dead.Set(float64(total.Dead))
	d.metrics.pending.Set(float64(total.Pending))
	d.metrics.behind.Set(total.Behind.Seconds())
	d.metrics.oldest.Set(total.OldestDue.Seconds())
	d.metrics.quarantine.Set(float64(total.Quarantined))
	if err == nil { // a company that is no longer one of the largest has no series
		d.metrics.largest.Reset()
	}
	for _, c := range total.Largest {
		d.metrics.largest.WithLabelValues(c.Company.String()).Set(float64(c.Pending))
	}
	return err
}
