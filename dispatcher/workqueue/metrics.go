package workqueue

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	turns         prometheus.Counter
	skipped       prometheus.Counter
	enqueued      prometheus.Counter
	served        prometheus.Counter
	wakeupsFailed prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, q *Queue) *metrics {
	factory := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return factory.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_scheduler_lag_seconds", Help: "Time since this replica last looked at the partitions that it owns, in the slowest shard.",
	}, func() float64 { return q.lag(time.Now()).Seconds() }) //nolint:forbidigo // as Queue.now
	return &metrics{
		turns:         counter("spendhook_turns_total", "Turns of companies: reads of what they have waiting."),
		skipped:       counter("spendhook_shares_refused_total", "Times that a company got no turn because it held its share of this replica's memory."),
		enqueued:      counter("spendhook_wakeups_enqueued_total", "Wake-ups that this replica enqueued for the owners of partitions."),
		served:        counter("spendhook_wakeups_served_total", "Wake-ups that this replica took from its queue."),
		wakeupsFailed: counter("spendhook_wakeups_failed_total", "Wake-ups that could not be enqueued: the owners serve the partitions a moment later."),
	}
}
