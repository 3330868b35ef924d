package storage

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"github.com/uptrace/bun/dialect/sqlitedialect"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"spendhook/internal/datadir"
)

const (
	databaseFile = "spend.db"
	historyFile  = "history.db"
)

// openSQLite opens one connection for writes, so that writers queue in this process and not
// in SQLite's busy handler, and a few for reads. A cached page of 4 KiB takes an allocation
// of 8 KiB, so a cache takes twice its cache_size. Statement journals are kept in memory: in files,
// they took a third of the time of an import.
func (db *DB) openSQLite() error {
	if db.opts.DataDir == "" {
		return fmt.Errorf("open storage: want a URL or a data directory")
	}
	if err := db.createFile(); err != nil {
		return fmt.Errorf("open storage: %w", err)
	}
	w, err := sql.Open("sqlite", db.sqliteURL("busy_timeout(0)", "cache_size(-16384)", "temp_store(MEMORY)",
		"wal_autocheckpoint(16000)", "analysis_limit(1000)", "journal_size_limit(67108864)"))
	if err != nil {
		return fmt.Errorf("open storage: %w", err)
	}
	w.SetMaxOpenConns(1)
	r, err := sql.Open("sqlite", db.sqliteURL("busy_timeout(5000)", "cache_size(-8192)", "query_only(1)"))
	if err != nil {
		return fmt.Errorf("open storage: %w", err)
	}
	r.SetMaxOpenConns(db.opts.MaxConns)
	r.SetMaxIdleConns(db.opts.MaxConns)
	db.writer, db.reader = bun.NewDB(w, sqlitedialect.New()), bun.NewDB(r, sqlitedialect.New())
	return nil
}

// createFile creates the file with mode 0600, because SQLite itself would create a file that all users
// can read. It refuses a file of another user. SQLite gives its other files the mode of this one.
func (db *DB) createFile() error {
	flag := os.O_RDWR
	if !db.opts.MustExist {
		flag |= os.O_CREATE
	}
	f, err := datadir.Open(db.path(), flag)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no database %s in data directory %s", filepath.Base(db.path()), db.opts.DataDir)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func (db *DB) sqliteURL(pragmas ...string) string {
	sync := "synchronous(NORMAL)"
	if db.opts.FullSync {
		sync = "synchronous(FULL)"
	}
	pragmas = append(pragmas, "journal_mode(WAL)", "foreign_keys(1)", sync)
	q := url.Values{"_txlock": {"immediate"}, "_pragma": pragmas}
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(db.path()), RawQuery: q.Encode()}).String()
}

// path is the path of the SQLite file.
func (db *DB) path() string {
	if db.opts.History {
		return db.file(historyFile)
	}
	return db.file(databaseFile)
}

func (db *DB) file(name string) string { return filepath.Join(db.opts.DataDir, name) }

// postgresURL returns the address with the TLS files. An error does not contain the address, which
// may have a password.
func (o *Options) postgresURL() (string, error) {
	if o.CAFile == "" && o.CertFile == "" {
		return o.URL, nil
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return "", errors.New("open storage: the address is not a URL")
	}
	q := u.Query()
	if o.CAFile != "" {
		q.Set("sslrootcert", o.CAFile)
		if !q.Has("sslmode") {
			q.Set("sslmode", "verify-full")
		}
	}
	if o.CertFile != "" {
		q.Set("sslcert", o.CertFile)
		q.Set("sslkey", o.KeyFile)
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

func (db *DB) openPostgres() error {
	address, err := db.opts.postgresURL()
	if err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(address)
	if err != nil {
		return fmt.Errorf("open storage: %w", err) // the error of pgx does not contain the password
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = db.opts.Timeout
	}
	// bun formats values into the SQL text, so each statement is new. This mode prepares no statements.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool := stdlib.OpenDB(*cfg)
	pool.SetMaxOpenConns(db.opts.MaxConns)
	pool.SetMaxIdleConns(db.opts.MaxConns)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	db.writer = bun.NewDB(pool, pgdialect.New())
	db.reader = db.writer
	return nil
}
