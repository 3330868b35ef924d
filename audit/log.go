package audit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/clock"
	"spendhook/internal/pause"
)

const (
	maxBatch     = 500
	writeTimeout = 500 * time.Millisecond
	awayTime     = time.Second // the pause after a failure of Redis
	trimTimeout  = 30 * time.Second
	spoolName    = "audit-pending.ndjson"
)

// Options are what a Log needs.
type Options struct {
	// Store is the stream in Redis. With nil, entries stay in the file, and the daemon with
	// the same Dir moves them to Redis. List must not be called then.
	Store *Store
	// Dir has the file of the entries that wait for Redis.
	Dir string
	// Retention is how long entries are kept; 0 means 400 days. Beyond MaxEntries
	// (0 means 1,000,000) the oldest go before that, which is counted and logged.
	Retention  time.Duration
	MaxEntries int

	// TrimEvery and SpoolEvery are how often the stream is trimmed, and the file
	// looked at; 0 means 1 min and 2 s.
	TrimEvery, SpoolEvery time.Duration

	// Reports says whether this replica's metrics show what all replicas share; nil:
	// they do.
	Reports func() bool

	Now        func() time.Time      // nil means time.Now
	Logger     *slog.Logger          // nil means slog.Default
	Registerer prometheus.Registerer // nil counts unseen
}

// Log is the audit log. It is safe for concurrent use.
type Log struct {
	opts    Options
	spool   spool
	metrics *metrics
	queue   chan *pending
	closing <-chan struct{}
	cancel  context.CancelFunc // closes closing, and ends a trim
	done    chan struct{}      // closed when run has ended
	trimmer sync.WaitGroup     // of the goroutine that trims; no Record waits for a trim

	away time.Time // Redis is not tried until then; used by run alone
}

// pending is an entry whose Record waits.
type pending struct {
	entry Entry
	done  chan struct{}
}

// Open starts the log. Close ends it.
func Open(opts Options) *Log {
	closing, cancel := context.WithCancel(context.Background())
	l := &Log{
		opts: opts.withDefaults(), spool: spool{filepath.Join(opts.Dir, spoolName)},
		metrics: newMetrics(opts.Registerer, opts.Reports), queue: make(chan *pending, maxBatch),
		closing: closing.Done(), cancel: cancel, done: make(chan struct{}),
	}
	go l.run(context.Background())
	l.trimmer.Go(func() { l.trimRegularly(closing) })
	return l
}

func (o Options) withDefaults() Options {
	o.Retention = cmp.Or(o.Retention, 400*24*time.Hour)
	o.MaxEntries = cmp.Or(o.MaxEntries, 1_000_000)
	o.TrimEvery = cmp.Or(o.TrimEvery, time.Minute)
	o.SpoolEvery = cmp.Or(o.SpoolEvery, 2*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Now = clock.Or(o.Now)
	return o
}

// Record returns when the entry is kept: in Redis, or in the file when Redis did
// not take it within half a second. When neither does, it is logged whole, as an
// error, and counted as lost. ID and At are set when they are zero.
func (l *Log) Record(e Entry) {
	if e.ID == "" {
		e.ID = uuid.NewString()
	}
	if e.At.IsZero() {
		e.At = l.opts.Now()
	}
	p := &pending{entry: e, done: make(chan struct{})}
	select {
	case l.queue <- p:
	case <-l.closing:
		l.keep([]Entry{e})
		return
	}
	select {
	case <-p.done:
	case <-l.done:
		select {
		case <-p.done:
		default:
			l.keep([]Entry{e}) // the log was closed before it wrote the entry
		}
	}
}

// Close ends the log once what waits is kept. What is recorded later goes to the
// file.
func (l *Log) Close() {
	l.cancel()
	<-l.done
	l.trimmer.Wait()
}

// run writes batches: all entries that arrived during the write before.
func (l *Log) run(ctx context.Context) {
	defer close(l.done)
	look := time.NewTicker(l.opts.SpoolEvery)
	defer look.Stop()
	l.emptySpool(ctx)
	for {
		select {
		case p := <-l.queue:
			l.write(ctx, l.gather(p))
		case <-look.C:
			l.emptySpool(ctx)
		case <-l.closing:
			return // Record writes queued entries to the file itself
		}
	}
}

func (l *Log) gather(first *pending) []*pending {
	batch := []*pending{first}
	for len(batch) < maxBatch {
		select {
		case p := <-l.queue:
			batch = append(batch, p)
		default:
			return batch
		}
	}
	return batch
}

func (l *Log) write(ctx context.Context, batch []*pending) {
	entries := make([]Entry, len(batch))
	for i, p := range batch {
		entries[i] = p.entry
	}
	if err := l.toRedis(ctx, entries); err != nil {
		l.keep(entries)
	}
	for _, p := range batch {
		close(p.done)
	}
}

var errAway = errors.New("after a failure, Redis is not tried now")

// toRedis writes entries to Redis. For awayTime after a failure, and without a Store, it fails
// at once.
func (l *Log) toRedis(ctx context.Context, entries []Entry) error {
	if l.opts.Store == nil || l.opts.Now().Before(l.away) {
		return errAway
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := l.opts.Store.add(ctx, entries); err != nil {
		l.away = l.opts.Now().Add(awayTime)
		l.opts.Logger.WarnContext(ctx, "audit entries wait in the data directory", "exception.message", err)
		return err
	}
	l.metrics.entries.WithLabelValues(resultStored).Add(float64(len(entries)))
	return nil
}

// keep writes entries to the file. If that fails, it logs them. Entries with an unknown
// outcome may fill half of the file, so that they leave room for successful changes: while
// Redis is down, most outcomes are unknown.
func (l *Log) keep(entries []Entry) {
	certain := func(e Entry) bool { return e.Outcome == Success }
	uncertain := func(e Entry) bool { return !certain(e) }
	l.keepUpTo(maxSpool, slices.DeleteFunc(slices.Clone(entries), uncertain))
	l.keepUpTo(maxSpool/2, slices.DeleteFunc(slices.Clone(entries), certain))
}

func (l *Log) keepUpTo(most int64, entries []Entry) {
	if len(entries) == 0 {
		return
	}
	err := l.spool.add(entries, most)
	if err == nil {
		l.metrics.entries.WithLabelValues(resultSpooled).Add(float64(len(entries)))
		return
	}
	l.metrics.entries.WithLabelValues(resultLost).Add(float64(len(entries)))
	for _, e := range entries {
		l.opts.Logger.Error("audit entry could not be kept", "exception.message", err, "entry", e)
	}
}

// emptySpool moves the entries of the file to Redis.
func (l *Log) emptySpool(ctx context.Context) {
	if l.opts.Store == nil || l.opts.Now().Before(l.away) {
		return
	}
	err := l.spool.empty(
		func(part []Entry) error { return l.toRedis(ctx, part) },
		func(line []byte) {
			l.opts.Logger.Error("not an audit entry", "file.path", l.spool.path, "line", string(line))
		},
	)
	if err != nil {
		l.opts.Logger.WarnContext(ctx, "audit entries still wait in the data directory", "exception.message", err)
	}
}

// trimRegularly trims the stream until ctx ends.
func (l *Log) trimRegularly(ctx context.Context) {
	if l.opts.Store == nil {
		return
	}
	for pause.For(ctx, l.opts.TrimEvery) {
		l.trim(ctx)
	}
}

// trim trims the stream within trimTimeout, and logs and counts the entries that were removed
// before their retention.
func (l *Log) trim(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	cut, left, err := l.opts.Store.trim(ctx, l.opts.Now().Add(-l.opts.Retention), int64(l.opts.MaxEntries))
	if cut > 0 {
		l.metrics.cut.Add(float64(cut))
		l.opts.Logger.ErrorContext(ctx, "audit entries were removed before their retention: there are more than audit.max_entries", "entries", cut)
	}
	switch {
	case err == nil:
		l.metrics.kept.Store(left)
	case !errors.Is(err, context.Canceled): // by Close
		l.opts.Logger.WarnContext(ctx, "audit stream not trimmed", "exception.message", err)
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
	cut     prometheus.Counter
	kept    atomic.Int64
}

func newMetrics(reg prometheus.Registerer, reports func() bool) *metrics {
	m := &metrics{
		entries: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_audit_entries_total",
			Help: "Audit entries by where they went: stored in Redis, spooled to a file until Redis is back, or lost (only logged).",
		}, []string{"result"}),
		cut: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "spendhook_audit_cut_total",
			Help: "Audit entries removed before their retention, because there were more than audit.max_entries.",
		}),
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
