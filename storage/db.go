// Package storage connects to the SQL database, migrates it and runs transactions. It
// distinguishes temporary errors, converts UUIDs and times to columns, and divides lists into pages.
// The packages below it read and write the spend data.
//
// SQLite (the default) and PostgreSQL share one schema and one set of queries.
package storage

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
	"github.com/uptrace/bun/schema"

	"spendhook/internal/pause"
)

// Options configures Open. Zero values mean the defaults.
type Options struct {
	// URL is a postgres:// address. Empty means SQLite in DataDir.
	URL string
	// CAFile, CertFile and KeyFile are for TLS to PostgreSQL (PEM).
	CAFile, CertFile, KeyFile string
	DataDir                   string // must exist
	// History opens the database of package archive instead of the one of the spend data: in PostgreSQL other
	// tables of the same database, else the file history.db instead of spend.db.
	History bool
	// MustExist makes Open fail if the SQLite file does not exist.
	MustExist bool
	// Timeout bounds every call, including the wait for a connection. 0 means 1.5 s.
	Timeout time.Duration
	// MaxConns bounds the connections that read (SQLite: one per CPU, at most
	// 4, besides the one that writes) or all connections (PostgreSQL: 16).
	MaxConns int
	// FullSync makes SQLite sync its log to disk at every commit. Without it a
	// commit survives a crash of this process, kill -9 included. A crash of the
	// machine, or a loss of power, leaves the database consistent but may lose
	// the last commits: up to about half a minute of them on Linux. PostgreSQL
	// syncs as its server is configured.
	FullSync bool
	// Logger logs migrations. Nil discards the messages.
	Logger *slog.Logger
}

// DB is the database. It is safe for concurrent use. Every method returns
// ErrUnavailable, wrapped, when the database is unreachable or too slow.
type DB struct {
	opts           Options
	writer, reader *bun.DB // the same pool in PostgreSQL
	migrated       atomic.Bool
	commits        commits // of SQLite
}

// Open returns a DB without connecting to the database. It fails for invalid options, and for an
// SQLite file that cannot be opened. Call Migrate before any other method.
func Open(opts Options) (*DB, error) {
	db := &DB{opts: withDefaults(opts)}
	var err error
	if opts.URL == "" {
		err = db.openSQLite()
	} else {
		err = db.openPostgres()
	}
	if err != nil {
		return nil, err
	}
	return db, nil
}

func withDefaults(o Options) Options {
	o.Timeout = cmp.Or(o.Timeout, 1500*time.Millisecond)
	conns := 16
	if o.URL == "" {
		conns = min(4, runtime.GOMAXPROCS(0))
	}
	o.MaxConns = cmp.Or(o.MaxConns, conns)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	return o
}

// Close closes all connections.
func (db *DB) Close() error {
	err := db.reader.Close()
	if db.writer != db.reader {
		err = errors.Join(db.writer.Close(), err)
	}
	return err
}

// Ping reports whether the database answers and has been migrated.
func (db *DB) Ping(ctx context.Context) error {
	return db.Query(ctx, "ping", func(ctx context.Context, db bun.IDB) error {
		_, err := db.NewRaw("SELECT 1").Exec(ctx)
		return err
	})
}

// Now reads the clock of the database's server; with SQLite, this machine's.
func (db *DB) Now(ctx context.Context) (now time.Time, err error) {
	if !db.postgres() {
		return time.Now(), nil //nolint:forbidigo // SQLite has no other clock
	}
	err = db.Query(ctx, "read the clock", func(ctx context.Context, db bun.IDB) error {
		return db.NewRaw("SELECT clock_timestamp()").Scan(ctx, &now)
	})
	return now, err
}

// Dialect returns the dialect of the database, for IsPostgres.
func (db *DB) Dialect() schema.Dialect { return db.writer.Dialect() }

func (db *DB) postgres() bool { return IsPostgres(db) }

// Query runs fn without a transaction, for a single statement that reads. op names the operation in
// the error. sql.ErrNoRows becomes ErrNotFound.
func (db *DB) Query(ctx context.Context, op string, fn func(context.Context, bun.IDB) error) error {
	return db.within(ctx, db.opts.Timeout, op, func(ctx context.Context) error { return fn(ctx, db.reader) })
}

// Snapshot is Query for several statements that read the same state of the data.
func (db *DB) Snapshot(ctx context.Context, op string, fn func(context.Context, bun.IDB) error) error {
	opts := &sql.TxOptions{ReadOnly: true}
	if db.postgres() {
		opts.Isolation = sql.LevelRepeatableRead
	}
	return db.within(ctx, db.opts.Timeout, op, func(ctx context.Context) error {
		return db.reader.RunInTx(ctx, opts, func(ctx context.Context, tx bun.Tx) error { return fn(ctx, tx) })
	})
}

// Write runs fn in a transaction, and runs it again after a serialization conflict: fn may
// be called more than once. In SQLite, concurrent writes share a commit: the transaction may
// include the writes of other callers. When Write returns nil, the writes of fn are committed.
// When it returns an error, they are rolled back.
func (db *DB) Write(ctx context.Context, op string, fn func(context.Context, bun.Tx) error) error {
	write := db.writeInSharedCommit
	if db.postgres() {
		write = db.transaction
	}
	return db.within(ctx, db.opts.Timeout, op, func(ctx context.Context) error { return write(ctx, fn) })
}

// WriteWithin is Write with a time limit and a commit of its own.
func (db *DB) WriteWithin(ctx context.Context, limit time.Duration, op string, fn func(context.Context, bun.Tx) error) error {
	return db.within(ctx, limit, op, func(ctx context.Context) error { return db.transaction(ctx, fn) })
}

// within calls fn with a time limit, and adds op to its error.
func (db *DB) within(ctx context.Context, limit time.Duration, op string, fn func(context.Context) error) error {
	if !db.migrated.Load() {
		return failed(op, errNotMigrated)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return failed(op, addContextError(ctx, fn(ctx)))
}

func (db *DB) transaction(ctx context.Context, fn func(context.Context, bun.Tx) error) error {
	conn, err := db.writer.Conn(ctx) // one for all attempts, so that in SQLite only one goroutine waits for other processes
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // returns the connection to the pool
	return db.retryWhileBusy(ctx, func() error { return conn.RunInTx(ctx, nil, fn) })
}

// retryEvery is the interval between the attempts of a waiting writer.
const retryEvery = time.Millisecond

// retryWhileBusy repeats fn while it fails because of other writers, until ctx ends.
func (db *DB) retryWhileBusy(ctx context.Context, fn func() error) error {
	for {
		if err := fn(); !isRetryable(err) || !pause.For(ctx, retryEvery) {
			return err
		}
	}
}

// Locked makes a query of a writing transaction lock its rows until the transaction ends. With the
// option "SKIP LOCKED", the query skips rows that another transaction has locked. SQLite needs no row
// locks, because it admits one writing transaction at a time.
func Locked(q *bun.SelectQuery, option string) *bun.SelectQuery {
	if IsPostgres(q) {
		return q.For("UPDATE " + option)
	}
	return q
}

// IsPostgres reports whether a query or transaction runs on PostgreSQL. Otherwise it runs on SQLite.
func IsPostgres(q interface{ Dialect() schema.Dialect }) bool {
	return q.Dialect().Name() == dialect.PG
}

// analyzeTimeout bounds the work of Analyze on one table.
const analyzeTimeout = 10 * time.Minute

// Analyze updates the planner's statistics of the tables. In PostgreSQL it also vacuums the
// tables: without that, counting the entries of an index reads every row.
func (db *DB) Analyze(ctx context.Context, tables ...string) error {
	statement := "ANALYZE ?"
	if db.postgres() {
		statement = "VACUUM (ANALYZE) ?"
	}
	for _, table := range tables {
		ctx, cancel := context.WithTimeout(ctx, analyzeTimeout)
		err := db.retryWhileBusy(ctx, func() error {
			_, err := db.writer.ExecContext(ctx, statement, bun.Ident(table))
			return err
		})
		cancel()
		if err != nil {
			return failed("analyze "+table, err)
		}
	}
	return nil
}
