package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"spendhook/internal/egress"
	"spendhook/internal/pause"
	"spendhook/internal/redismemory"
	"spendhook/internal/redisx"
	"spendhook/storage"
)

const redisSampleInterval = 5 * time.Second

// newRegistry returns a registry with the metrics of the build, the Go runtime and the process.
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
	gauge := func(name, help string, value func() int64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
	}
	gauge("spendhook_redis_memory_bytes", "Memory that the fullest Redis server uses.",
		func() int64 { return m.Fullest().Used })
	gauge("spendhook_redis_memory_limit_bytes", "Memory that the fullest Redis server may use; 0 if unknown.",
		func() int64 { return m.Fullest().Limit })
	gauge("spendhook_redis_high_water_bytes", "Memory that the fullest Redis server may use before new events are refused; 0 if it is not limited.",
		func() int64 { return m.Fullest().HighWater })
}

// redisWatch checks Redis at intervals, so that a scrape of the metrics makes no request.
type redisWatch struct {
	check func(context.Context) redisx.Status
	up    prometheus.Gauge
	safe  prometheus.Gauge
	log   *slog.Logger
	known map[string]bool // the problems that the last check logged
}

func newRedisWatch(check func(context.Context) redisx.Status, reg prometheus.Registerer, log *slog.Logger) *redisWatch {
	w := &redisWatch{check: check, log: log, up: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_redis_up",
		Help: "Whether Redis answered the last check; in a Cluster, whether all shards did.",
	}), safe: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_redis_safe",
		Help: "Whether Redis, in a Cluster each shard, stored data safely at the last check: it is a master, evicts nothing and can write its append-only file.",
	})}
	reg.MustRegister(w.up, w.safe)
	return w
}

// run samples at once and then every redisSampleInterval, until ctx ends.
func (w *redisWatch) run(ctx context.Context) {
	for ok := true; ok; ok = pause.For(ctx, redisSampleInterval) {
		w.sample(ctx)
	}
}

// sample checks Redis once. It logs each new problem, and once that no problem is left.
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
	found := make(map[string]bool)
	for _, problem := range slices.Concat(status.Problems, status.Down) {
		what, _, _ := strings.Cut(problem, ": ") // the text of an error may change from check to check
		found[what] = true
		if !w.known[what] {
			w.log.Error("Redis has a problem", "problem", problem)
		}
	}
	if len(found) == 0 && len(w.known) > 0 {
		w.log.Info("Redis has no problems left")
	}
	w.known = found
}

// The interval between checks of the database, while it is unavailable and otherwise.
const (
	databaseRetry          = time.Second
	databaseSampleInterval = 5 * time.Second
)

// databaseWatch migrates the database as soon as it is reachable, and then pings it at
// intervals. Scrapes and probes use the last result.
type databaseWatch struct {
	store *storage.DB
	up    prometheus.Gauge
	log   *slog.Logger
	first chan struct{} // closed after the first check
	down  atomic.Bool
}

func newDatabaseWatch(store *storage.DB, reg prometheus.Registerer, log *slog.Logger) *databaseWatch {
	w := &databaseWatch{store: store, log: log, first: make(chan struct{}), up: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_database_up",
		Help: "Whether the spend database answered the last check.",
	})}
	reg.MustRegister(w.up)
	return w
}

// run checks the database until ctx ends.
func (w *databaseWatch) run(ctx context.Context) {
	check := w.store.Migrate
	wait := w.sample(ctx, check)
	close(w.first)
	for pause.For(ctx, wait) {
		if !w.down.Load() {
			check = w.store.Ping
		}
		wait = w.sample(ctx, check)
	}
}

// sample checks the database, logs when it becomes unavailable or available, and returns the
// wait until the next check.
func (w *databaseWatch) sample(ctx context.Context, check func(context.Context) error) time.Duration {
	err := check(ctx)
	if ctx.Err() != nil { // the shutdown ended the check
		return 0
	}
	was := w.down.Swap(err != nil)
	switch {
	case err != nil && !was:
		w.log.Error("the spend database is unavailable; deliveries continue", "exception.message", err)
	case err == nil && was:
		w.log.Info("the spend database is available again")
	}
	if err != nil {
		w.up.Set(0)
		return databaseRetry
	}
	w.up.Set(1)
	return databaseSampleInterval
}

// warnings returns warnings for /readyz. Without the database the daemon is still ready: deliveries
// do not use it.
func (w *databaseWatch) warnings() []string {
	if w.down.Load() {
		return []string{"the spend database does not answer: cards, reimbursements, locations and statements answer 503"}
	}
	return nil
}

// refusals warns in /readyz of companies at their own share.
func (d *daemon) refusals() []string {
	if d.running.Load() == nil { // it has accepted nothing yet
		return nil
	}
	if n := d.publisher.Refused(); n > 0 {
		return []string{fmt.Sprintf("events of %d companies were refused within the last minute, because they are at their own share (BACKLOG_FULL, STORAGE_FULL): spendhook_company_backlog names the largest", n)}
	}
	return nil
}

// watchVerification counts the subscribers whose deliveries wait for the verification of their callback URL, once a minute.
func (d *daemon) watchVerification(ctx context.Context) error {
	var waiting atomic.Int64
	d.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_subscribers_unverified",
		Help: "Subscribers whose deliveries wait for the verification of their callback URL, shown by the owner of partition 0.",
	}, func() float64 {
		if !d.reports() {
			return 0
		}
		return float64(waiting.Load())
	}))
	d.background(ctx, func(ctx context.Context) {
		for ctx.Err() == nil {
			n, err := d.subscribers.CountUnverified(ctx)
			if err != nil {
				pause.For(ctx, time.Second)
				continue
			}
			waiting.Store(n)
			pause.For(ctx, time.Minute)
		}
	})
	return nil
}

// watchAddresses counts the published egress addresses by their state.
func (d *daemon) watchAddresses(context.Context) error {
	for state, is := range map[string]func(egress.Source, time.Time) bool{
		"valid":     egress.Source.Valid,
		"announced": func(s egress.Source, now time.Time) bool { return now.Before(s.From) },
	} {
		d.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spendhook_egress_addresses", Help: "Published egress addresses and ranges by state: valid, or announced for later.",
			ConstLabels: prometheus.Labels{"state": state},
		}, func() (n float64) {
			now := time.Now()
			for _, source := range *d.egressAddresses.Load() {
				if is(source, now) {
					n++
				}
			}
			return n
		}))
	}
	return nil
}

const certificateNotice = 30 * 24 * time.Hour // time before the expiry from which warnings are given

// The interval between checks of the egress certificates, after one that failed and otherwise.
const (
	certificateRetry = time.Minute
	certificateEvery = time.Hour
)

// watchCertificates counts the egress certificates that expire soon or have expired, and logs a
// warning for each, once an hour, and soon after a check that failed.
func (d *daemon) watchCertificates(ctx context.Context) error {
	var ending atomic.Int64
	d.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_egress_certificates_ending",
		Help: "Egress certificates of companies and of subscribers that expire within 30 days or have expired, at most five of a company, shown by the owner of partition 0.",
	}, func() float64 {
		if !d.reports() {
			return 0
		}
		return float64(ending.Load())
	}))
	d.background(ctx, func(ctx context.Context) {
		for pause.For(ctx, d.checkCertificates(ctx, &ending)) {
		}
	})
	return nil
}

// checkCertificates checks once and returns the wait until the next check. The check fails while a
// shard is down.
func (d *daemon) checkCertificates(ctx context.Context, ending *atomic.Int64) time.Duration {
	expiring, err := d.certificates.ExpiringBefore(ctx, time.Now().Add(certificateNotice))
	if err != nil {
		return certificateRetry
	}
	ending.Store(int64(len(expiring)))
	for _, c := range expiring {
		log := d.log
		if c.Subscriber != uuid.Nil {
			log = log.With("subscriber_uuid", c.Subscriber)
		}
		log.Warn("an egress certificate expires soon or has expired", "company_uuid", c.Company, "not_after", c.NotAfter)
	}
	return certificateEvery
}
