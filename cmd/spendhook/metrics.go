package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"spendhook/internal/redismemory"
	"spendhook/internal/redisx"
)

const redisSampleInterval = 5 * time.Second

// newRegistry is a registry with what describes the process itself.
func newRegistry() *prometheus.Registry {
	b := readBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_build_info",
		Help: "Always 1; the labels identify the build.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "revision": b.Revision, "goversion": b.GoVersion,
		},
	})
	info.Set(1)
	reg := prometheus.NewRegistry()
	reg.MustRegister(info,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// registerMemory registers the memory metrics of Redis. In a Cluster they are those of the
// fullest master. Use the maximum over the replicas, not the sum.
func registerMemory(reg prometheus.Registerer, m *redismemory.Watch) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spendhook_redis_memory_bytes", Help: "Memory that the fullest Redis server uses.",
		}, func() float64 { return float64(m.Fullest().Used) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spendhook_redis_memory_limit_bytes", Help: "Memory that the fullest Redis server may use; 0 if unknown.",
		}, func() float64 { return float64(m.Fullest().Limit) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spendhook_redis_high_water_bytes",
			Help: "Memory that the fullest Redis server may use before new events are refused; 0 if it is not limited.",
		}, func() float64 { return float64(m.Fullest().HighWater) }),
	)
}

// redisWatch samples Redis on a timer of its own, so that a scrape makes no request.
type redisWatch struct {
	check func(context.Context) redisx.Status
	up    prometheus.Gauge
	safe  prometheus.Gauge
	log   *slog.Logger
	last  string // the problem logged last, "" while there is none
}

func newRedisWatch(check func(context.Context) redisx.Status, reg prometheus.Registerer, log *slog.Logger) *redisWatch {
	w := &redisWatch{check: check, log: log, up: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_redis_up",
		Help: "Whether Redis answered the last check.",
	}), safe: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_redis_safe",
		Help: "Whether Redis stored data safely at the last check: it is a master, evicts nothing and can write its append-only file.",
	})}
	reg.MustRegister(w.up, w.safe)
	return w
}

// run samples at once and then on the timer, until ctx ends.
func (w *redisWatch) run(ctx context.Context) {
	ticker := time.NewTicker(redisSampleInterval)
	defer ticker.Stop()
	for {
		w.sample(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sample logs a problem once when it appears and once when it is gone.
func (w *redisWatch) sample(ctx context.Context) {
	status := w.check(ctx)
	if ctx.Err() != nil { // the shutdown ended the check
		return
	}
	w.up.Set(0)
	if status.Up {
		w.up.Set(1)
	}
	w.safe.Set(0)
	if status.Up && len(status.Problems) == 0 {
		w.safe.Set(1)
	}
	problem := ""
	if len(status.Problems) > 0 {
		problem = status.Problems[0]
	}
	switch {
	case problem != "" && w.last == "":
		w.log.Error("not ready", "problem", problem)
	case problem == "" && w.last != "":
		w.log.Info("ready again", "problem", w.last)
	}
	w.last = problem
}
