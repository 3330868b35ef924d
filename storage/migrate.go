package storage

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"spendhook/internal/datadir"
)

//go:embed migrations/*.sql migrations/history/*/*.sql
var migrations embed.FS

const (
	migrationTimeout = 10 * time.Minute
	createTimeout    = time.Minute // of the SQLite file
)

// Migrate brings the schema up to date and opens the DB for use. If several processes call it at once,
// one migrates and the others wait. After ErrUnavailable it may be called again.
func (db *DB) Migrate(ctx context.Context) error {
	limit := db.opts.Timeout
	if !db.postgres() {
		limit = createTimeout // the creation syncs the file several times, and disks may be slow
	}
	ping, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := db.retryWhileBusy(ping, func() error { return db.writer.PingContext(ping) }); err != nil {
		return failed("migrate", err)
	}
	ctx, cancel = context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	p, err := db.provider()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if !db.postgres() {
		locked, err := datadir.Lock(ctx, db.file("migrate.lock")) // one process at a time migrates the file
		if err != nil {
			return failed("migrate", err)
		}
		defer func() { _ = locked.Close() }() // unlocks it
	}
	err = db.retryWhileBusy(ctx, func() error {
		_, err := p.Up(ctx)
		return err
	})
	if err != nil {
		return failed("migrate", err)
	}
	db.migrated.Store(true)
	return nil
}

// Outdated reports whether the schema needs a migration. It changes nothing. It may be called before
// Migrate.
func (db *DB) Outdated(ctx context.Context) (bool, error) {
	if err := db.writer.PingContext(ctx); err != nil {
		return false, failed("read schema version", err)
	}
	p, err := db.provider()
	if err != nil {
		return false, fmt.Errorf("read schema version: %w", err)
	}
	outdated, err := p.HasPending(ctx)
	return outdated, failed("read schema version", err)
}

func (db *DB) provider() (*goose.Provider, error) {
	dialect, dir := goose.DialectSQLite3, "migrations"
	if db.opts.History {
		dir = "migrations/history/sqlite"
	}
	options := []goose.ProviderOption{goose.WithSlog(db.opts.Logger), goose.WithDisableGlobalRegistry(true)}
	if db.postgres() {
		dialect = goose.DialectPostgres
		if db.opts.History {
			dir = "migrations/history/postgres"
			options = append(options, goose.WithTableName("history_version"))
		}
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600))
		if err != nil {
			return nil, err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	files, err := fs.Sub(migrations, dir)
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(dialect, db.writer.DB, files, options...)
}
