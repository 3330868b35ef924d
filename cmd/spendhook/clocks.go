package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/pause"
	"spendhook/internal/redisx"
)

const (
	// maxClockOffset is how far the clocks of the daemon, Redis and the database may be apart.
	maxClockOffset      = time.Second
	clockSampleInterval = 10 * time.Second
)

// clockReader reads the clock of a server.
type clockReader func(context.Context) (time.Time, error)

// clockWatch compares the daemon's clock with those of Redis and of the database. Clocks of replicas
// are compared by their offsets to Redis, in an alert.
type clockWatch struct {
	readers map[string]clockReader // by the name of the server
	ahead   *prometheus.GaugeVec
	log     *slog.Logger

	mu    sync.Mutex
	wrong map[string]string // the problem of a server whose clock is too far off
}

func newClockWatch(readers map[string]clockReader, reg prometheus.Registerer, log *slog.Logger) *clockWatch {
	w := &clockWatch{readers: readers, log: log, wrong: map[string]string{}, ahead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "spendhook_clock_ahead_seconds",
		Help: "By how much the clock of a server is ahead of this replica's, at least: Redis (in a Cluster the master that differs most), or the database. Negative when it is behind.",
	}, []string{"server"})}
	reg.MustRegister(w.ahead)
	return w
}

// run samples at once and then every clockSampleInterval, until ctx ends.
func (w *clockWatch) run(ctx context.Context) {
	for ok := true; ok; ok = pause.For(ctx, clockSampleInterval) {
		for server, read := range w.readers {
			w.sample(ctx, server, read)
		}
	}
}

// sample reads one clock. While a server does not answer, its last offset stays.
func (w *clockWatch) sample(ctx context.Context, server string, read clockReader) {
	ahead, _, err := clock.Offset(ctx, time.Now, read)
	if err != nil {
		return
	}
	w.ahead.WithLabelValues(server).Set(ahead.Seconds())
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.wrong[server]
	if ahead.Abs() <= maxClockOffset {
		delete(w.wrong, server)
		if known {
			w.log.Info("clocks agree again")
		}
		return
	}
	w.wrong[server] = describeOffset(server, ahead)
	if !known {
		w.log.Warn("clocks differ", "warning", w.wrong[server])
	}
}

func describeOffset(server string, ahead time.Duration) string {
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	return fmt.Sprintf("the clock of %s is %v %s this machine's: synchronise both (chrony, systemd-timesyncd)", server, ahead.Abs().Round(time.Millisecond), direction)
}

// warnings returns warnings for /readyz.
func (w *clockWatch) warnings() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.wrong {
		list = append(list, text)
	}
	return list
}

// redisClock reads the clock of Redis; in a Cluster, that of the master that differs most from this
// machine's.
func redisClock(client redis.UniversalClient) clockReader {
	return func(ctx context.Context) (furthest time.Time, err error) {
		var mu sync.Mutex
		var most time.Duration
		err = redisx.EachMaster(ctx, client, func(ctx context.Context, _ string, c redis.UniversalClient) error {
			at, err := c.Time(ctx).Result()
			mu.Lock()
			defer mu.Unlock()
			if off := time.Until(at).Abs(); err == nil && (furthest.IsZero() || off > most) {
				furthest, most = at, off
			}
			return err
		})
		return furthest, err
	}
}
