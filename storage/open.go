package storage

import (
	"database/sql"
	"fmt"
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
)

const databaseFile = "spend.db"

// openSQLite opens one connection that writes, so that writers queue in this
// process and not in SQLite's busy handler, and a few that read beside it. A
// cached page of 4 KiB lies in an allocation of 8 KiB, so caches cost twice
// their size. What undoes a statement stays in memory: written to a file, it was
// a third of the work of an import.
func (s *Store) openSQLite() error {
	if s.opts.DataDir == "" {
		return fmt.Errorf("open storage: neither a URL nor a data directory")
	}
	if err := os.MkdirAll(s.opts.DataDir, 0o700); err != nil {
		return fmt.Errorf("open storage: %w", err)
	}
	w, err := sql.Open("sqlite", s.sqliteURL("busy_timeout(0)", "cache_size(-16384)", "temp_store(MEMORY)",
		"wal_autocheckpoint(16000)", "analysis_limit(1000)", "journal_size_limit(67108864)"))
	if err != nil {
		return fmt.Errorf("open storage: %w", err)
	}
	w.SetMaxOpenConns(1)
	r, err := sql.Open("sqlite", s.sqliteURL("busy_timeout(5000)", "cache_size(-8192)", "query_only(1)"))
	if err != nil {
		return fmt.Errorf("open storage: %w", err)
	}
	r.SetMaxOpenConns(s.opts.MaxConns)
	r.SetMaxIdleConns(s.opts.MaxConns)
	s.w, s.r = bun.NewDB(w, sqlitedialect.New()), bun.NewDB(r, sqlitedialect.New())
	return nil
}

func (s *Store) sqliteURL(pragmas ...string) string {
	sync := "synchronous(NORMAL)"
	if s.opts.FullSync {
		sync = "synchronous(FULL)"
	}
	pragmas = append(pragmas, "journal_mode(WAL)", "foreign_keys(1)", sync)
	q := url.Values{"_txlock": {"immediate"}, "_pragma": pragmas}
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(s.file(databaseFile)), RawQuery: q.Encode()}).String()
}

func (s *Store) file(name string) string { return filepath.Join(s.opts.DataDir, name) }

func (s *Store) openPostgres() error {
	cfg, err := pgx.ParseConfig(s.opts.URL)
	if err != nil {
		return fmt.Errorf("open storage: %w", err) // pgx leaves the password out
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = s.opts.Timeout
	}
	// bun writes values into the text itself, so a prepared statement would
	// serve once: let the arguments of the others travel with their query too.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(s.opts.MaxConns)
	db.SetMaxIdleConns(s.opts.MaxConns)
	db.SetConnMaxIdleTime(5 * time.Minute)
	s.w = bun.NewDB(db, pgdialect.New())
	s.r = s.w
	return nil
}
