package audit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/pause"
)

const (
	writeWithin = 500 * time.Millisecond
	retryAfter  = time.Second     // the pause after a failed write to Redis
	tidyEvery   = 2 * time.Second // between two moves of entries from the file to Redis
	trimTimeout = 30 * time.Second
	fileName    = "audit-pending.ndjson"
)

// Options configures Open.
type Options struct {
	// Client connects to the Redis with the log. If it is nil, entries go to the file, List must not
	// be called, and the daemon with the same Dir moves the entries to Redis.
	Client redis.UniversalClient
	// Dir has the file of the entries that wait for Redis.
	Dir string
	// Retention is how long entries are kept; 0 means 400 days. Beyond MaxEntries
	// (0 means 1,000,000) the oldest entries are removed earlier, which is logged.
	Retention  time.Duration
	MaxEntries int

	// Reports returns whether this replica exports the metrics of shared state; only one replica
	// should. Nil means that it does.
	Reports func() bool

	Now        func() time.Time      // nil means time.Now
	Logger     *slog.Logger          // nil means slog.Default
	Registerer prometheus.Registerer // of the metrics; nil exports none

	within time.Duration // bounds a write to Redis; 0 means writeWithin, and tests need longer on a busy machine
}

// Log is the audit log. It is safe for concurrent use.
type Log struct {
	opts    Options
	clock   func() time.Time // of Options; nil: the real one
	file    string
	metrics *metrics
	cancel  context.CancelFunc // stops tidy
	running sync.WaitGroup
	retryAt atomic.Pointer[time.Time] // when Redis is tried next
}

// Open starts the log. Close ends it.
func Open(opts Options) *Log {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Log{
		opts: opts.withDefaults(), clock: opts.Now, file: filepath.Join(opts.Dir, fileName),
		metrics: newMetrics(opts.Registerer, opts.Reports), cancel: cancel,
	}
	l.retryAt.Store(&time.Time{})
	if opts.Client != nil {
		l.running.Go(func() { l.tidy(ctx) })
	}
	return l
}

func (o Options) withDefaults() Options {
	o.Retention = cmp.Or(o.Retention, 400*24*time.Hour)
	o.MaxEntries = cmp.Or(o.MaxEntries, 1_000_000)
	o.within = cmp.Or(o.within, writeWithin)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Now = clock.Or(o.Now)
	return o
}

// Record stores an entry in Redis. If Redis does not accept the entry within half a second, Record
// stores it in the file. If that fails too, Record logs the whole entry as an error and counts it as
// lost. It sets ID and At when they are zero.
func (l *Log) Record(e Entry) {
	e.ID = cmp.Or(e.ID, uuid.NewString())
	if e.At.IsZero() {
		e.At = l.opts.Now()
	}
	text, err := encode(e)
	if err == nil && l.store(context.Background(), [][]byte{text}) == nil { // a cancelled request must not lose the entry
		return
	}
	if err == nil {
		err = l.addToFile(text, e.Outcome)
	}
	result := resultSpooled
	if err != nil {
		result = resultLost
		l.opts.Logger.Error("audit entry lost", "exception.message", err, "entry", e)
	}
	l.metrics.entries.WithLabelValues(result).Inc()
}

// Close stops the background work that Open started.
func (l *Log) Close() {
	l.cancel()
	l.running.Wait()
}

var errPaused = errors.New("a write to Redis failed less than a second ago")

// store writes entries to Redis. For retryAfter after a failure, and without a Client, it fails
// at once.
func (l *Log) store(ctx context.Context, entries [][]byte) error {
	if l.opts.Client == nil || l.opts.Now().Before(*l.retryAt.Load()) {
		return errPaused
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.within)
	defer cancel()
	added, err := l.add(ctx, entries)
	if err != nil {
		until := l.opts.Now().Add(retryAfter)
		l.retryAt.Store(&until)
		l.opts.Logger.WarnContext(ctx, "audit entries wait in the data directory", "exception.message", err)
		return err
	}
	l.metrics.entries.WithLabelValues(resultStored).Add(float64(added))
	return nil
}

// tidy moves the entries of the file to Redis and trims the log, again and again until ctx
// ends.
func (l *Log) tidy(ctx context.Context) {
	for {
		err := l.emptyFile(func(entries [][]byte) error { return l.store(ctx, entries) }) //nolint:contextcheck // other processes hold the lock only for a short time
		if err != nil && !errors.Is(err, errPaused) {
			l.opts.Logger.WarnContext(ctx, "audit entries still wait in the data directory", "exception.message", err)
		}
		l.trim(ctx)
		if !pause.For(ctx, tidyEvery) {
			return
		}
	}
}

// The labels of spendhook_audit_entries_total.
const (
	resultStored  = "stored"
	resultSpooled = "spooled"
	resultLost    = "lost"
)

type metrics struct {
	entries *prometheus.CounterVec
	kept    atomic.Int64
}

func newMetrics(reg prometheus.Registerer, reports func() bool) *metrics {
	m := &metrics{
		entries: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_audit_entries_total",
			Help: "Audit entries by where they went: stored in Redis, spooled to a file until Redis is back, or lost (only logged).",
		}, []string{"result"}),
	}
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_audit_entries",
		Help: "Audit entries that are kept, shown by the owner of partition 0.",
	}, func() float64 {
		if reports != nil && !reports() {
			return 0
		}
		return float64(m.kept.Load())
	})
	for _, result := range []string{resultStored, resultSpooled, resultLost} {
		m.entries.WithLabelValues(result)
	}
	return m
}
