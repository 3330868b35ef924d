// Package storage holds the spend data in SQL: companies, users, cards and the
// jobs that create them in bulk, reimbursements, locations and billing
// statements. It is the one place that decides whether a card may change.
//
// SQLite (the default) and PostgreSQL share one schema and one set of queries.
package storage

import (
	"context"
	"database/sql"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"golang.org/x/sync/singleflight"
)

// Options configures Open. Zero values mean the defaults.
type Options struct {
	// URL is a postgres:// address. Empty means SQLite in DataDir.
	URL     string
	DataDir string
	// Timeout bounds every call, waiting for a connection included: 1.5 s.
	Timeout time.Duration
	// MaxConns bounds the connections that read (SQLite: one per CPU, at most
	// 4, beside the one that writes) or all connections (PostgreSQL: 16).
	MaxConns int
	// FullSync makes SQLite sync its log to disk at every commit. Without it a
	// commit survives the death of this process, kill -9 included. When the
	// machine itself crashes or loses power, the database stays consistent but
	// may have lost the last commits: those that the operating system had not
	// yet written back, up to about half a minute of them on Linux. PostgreSQL
	// syncs as its server is configured.
	FullSync bool
	// Logger hears of migrations. Nil discards.
	Logger *slog.Logger
	Now    func() time.Time
	NewID  func() uuid.UUID
}

// Store is the spend database. It is safe for concurrent use. Every method
// returns ErrUnavailable, wrapped, when the database is away or too slow.
type Store struct {
	opts      Options
	w, r      *bun.DB // the same pool in PostgreSQL
	migrated  atomic.Bool
	histories *lru.Cache[string, history]
	counting  singleflight.Group
	served    atomic.Pointer[key] // the company whose item was worked on last
}

// Open prepares a Store without reaching for the database: it errs only on
// options that cannot be right. Call Migrate before anything else.
func Open(opts Options) (*Store, error) {
	s := &Store{opts: withDefaults(opts)}
	var err error
	if s.histories, err = lru.New[string, history](maxHistories); err != nil {
		return nil, err
	}
	if opts.URL == "" {
		err = s.openSQLite()
	} else {
		err = s.openPostgres()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func withDefaults(o Options) Options {
	if o.Timeout <= 0 {
		o.Timeout = 1500 * time.Millisecond
	}
	if o.MaxConns <= 0 && o.URL == "" {
		o.MaxConns = min(4, runtime.GOMAXPROCS(0))
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 16
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the default clock
	}
	if o.NewID == nil {
		o.NewID = uuid.New
	}
	return o
}

// Close closes all connections.
func (s *Store) Close() error {
	err := s.r.Close()
	if s.w != s.r {
		err = firstError(s.w.Close(), err)
	}
	return err
}

// Ping reports whether the database answers and has been migrated.
func (s *Store) Ping(ctx context.Context) error {
	return s.query(ctx, "ping", func(ctx context.Context, db bun.IDB) error {
		_, err := db.NewRaw("SELECT 1").Exec(ctx)
		return err
	})
}

func (s *Store) postgres() bool { return s.w.Dialect().Name() == dialect.PG }

// query runs fn without a transaction, for a single statement that reads.
func (s *Store) query(ctx context.Context, op string, fn func(context.Context, bun.IDB) error) error {
	if !s.migrated.Load() {
		return failed(op, errNotMigrated)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	return failed(op, inTime(ctx, fn(ctx, s.r)))
}

// snapshot runs fn in a transaction in which every statement sees one state.
func (s *Store) snapshot(ctx context.Context, op string, fn func(context.Context, bun.IDB) error) error {
	if !s.migrated.Load() {
		return failed(op, errNotMigrated)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	opts := &sql.TxOptions{ReadOnly: true}
	if s.postgres() {
		opts.Isolation = sql.LevelRepeatableRead
	}
	err := s.r.RunInTx(ctx, opts, func(ctx context.Context, tx bun.Tx) error { return fn(ctx, tx) })
	return failed(op, inTime(ctx, err))
}

// write runs fn in a transaction that writes, again when the database let
// another go first. In SQLite it is the only one from its beginning.
func (s *Store) write(ctx context.Context, op string, fn func(context.Context, bun.Tx) error) error {
	return s.writeWithin(ctx, s.opts.Timeout, op, fn)
}

func (s *Store) writeWithin(ctx context.Context, limit time.Duration, op string, fn func(context.Context, bun.Tx) error) error {
	if !s.migrated.Load() {
		return failed(op, errNotMigrated)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := s.w.Conn(ctx) // one for all tries, so that in SQLite only one of us waits for other processes
	if err != nil {
		return failed(op, inTime(ctx, err))
	}
	defer func() { _ = conn.Close() }() // gives it back
	err = s.untilItsTurn(ctx, func() error { return conn.RunInTx(ctx, nil, fn) })
	return failed(op, inTime(ctx, err))
}

// locked makes a query hold its rows until the transaction ends. SQLite needs
// nothing: it admits one writing transaction at a time.
func (s *Store) locked(q *bun.SelectQuery) *bun.SelectQuery {
	if s.postgres() {
		return q.For("UPDATE")
	}
	return q
}

// lockedFree is locked, but passes by the rows that another transaction holds.
func (s *Store) lockedFree(q *bun.SelectQuery) *bun.SelectQuery {
	if s.postgres() {
		return q.For("UPDATE SKIP LOCKED")
	}
	return q
}
