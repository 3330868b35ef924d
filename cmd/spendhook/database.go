package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/internal/pause"
	"spendhook/storage"
)

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
	tried chan struct{} // closed after the first check
	away  atomic.Bool
}

func newDatabaseWatch(store *storage.DB, reg prometheus.Registerer, log *slog.Logger) *databaseWatch {
	w := &databaseWatch{store: store, log: log, tried: make(chan struct{}), up: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_database_up",
		Help: "Whether the spend database answered the last check.",
	})}
	reg.MustRegister(w.up)
	return w
}

// run checks the database until ctx ends.
func (w *databaseWatch) run(ctx context.Context) {
	ask := w.store.Migrate
	wait := w.sample(ctx, ask)
	close(w.tried)
	for pause.For(ctx, wait) {
		if !w.away.Load() {
			ask = w.store.Ping
		}
		wait = w.sample(ctx, ask)
	}
}

// sample checks the database, logs when it becomes unavailable or available, and returns the
// wait until the next check.
func (w *databaseWatch) sample(ctx context.Context, ask func(context.Context) error) time.Duration {
	err := ask(ctx)
	if ctx.Err() != nil { // the shutdown ended the check
		return 0
	}
	was := w.away.Swap(err != nil)
	switch {
	case err != nil && !was:
		w.log.Error("the spend database is away, deliveries go on", "exception.message", err)
	case err == nil && was:
		w.log.Info("the spend database is back")
	}
	if err != nil {
		w.up.Set(0)
		return databaseRetry
	}
	w.up.Set(1)
	return databaseSampleInterval
}

// warnings are for /readyz: the daemon is ready for deliveries all the same.
func (w *databaseWatch) warnings() []string {
	if w.away.Load() {
		return []string{"the spend database does not answer: cards, reimbursements, locations and statements answer 503"}
	}
	return nil
}
