package workqueue

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	claims        prometheus.Counter
	passed        prometheus.Counter
	fenced        prometheus.Counter
	enqueued      prometheus.Counter
	served        prometheus.Counter
	wakeupsFailed prometheus.Counter
	requeued      prometheus.Counter
	takeovers     prometheus.Counter
	owned         prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		claims:        counter("spendhook_claims_total", "Claims of work, one per partition and call."),
		passed:        counter("spendhook_shares_refused_total", "Times that a company was passed by since it held its share of this replica's memory."),
		fenced:        counter("spendhook_fenced_total", "Times that this replica found its work taken over."),
		enqueued:      counter("spendhook_wakeups_enqueued_total", "Wake-ups that this replica enqueued."),
		served:        counter("spendhook_wakeups_served_total", "Wake-ups that this replica took from the queue and served."),
		wakeupsFailed: counter("spendhook_wakeups_failed_total", "Wake-ups that could not be enqueued and were served by this replica itself."),
		requeued:      counter("spendhook_takeover_requeued_total", "Notes of lost replicas that this replica requeued."),
		takeovers:     counter("spendhook_takeovers_total", "Lost replicas whose work this replica took over."),
		owned: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_partitions_owned", Help: "Partitions that this replica schedules.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.claims, m.passed, m.fenced, m.enqueued, m.served, m.wakeupsFailed, m.requeued, m.takeovers, m.owned)
	}
	return m
}
