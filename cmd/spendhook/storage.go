package main

import (
	"context"
	"fmt"
	"log/slog"

	"spendhook/config"
	"spendhook/internal/clienttls"
	"spendhook/internal/datadir"
	"spendhook/internal/redisx"
	"spendhook/storage"
)

// settings loads the settings of a command that works in the daemon's data directory.
func (f configFlags) settings() (*config.Config, error) {
	cfg, err := f.load()
	if err != nil {
		return nil, err
	}
	return cfg, datadir.Check(cfg.DataDir)
}

// open opens the existing database and brings its schema up to date.
// The caller closes it.
func (f configFlags) open(ctx context.Context) (*storage.DB, error) {
	cfg, err := f.settings()
	if err != nil {
		return nil, err
	}
	return openMigrated(ctx, cfg)
}

func openMigrated(ctx context.Context, cfg *config.Config) (*storage.DB, error) {
	store, err := openStorage(cfg)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		_ = store.Close() // nothing was written
		return nil, err
	}
	return store, nil
}

// openStorage opens the database for a command. It creates no SQLite file.
func openStorage(cfg *config.Config) (*storage.DB, error) {
	o := storageOptions(cfg, nil)
	o.MustExist = true
	return storage.Open(o)
}

func storageOptions(cfg *config.Config, log *slog.Logger) storage.Options {
	return storage.Options{
		URL: cfg.Storage.URL.Reveal(), DataDir: cfg.DataDir,
		CAFile: cfg.Storage.CAFile, CertFile: cfg.Storage.CertFile, KeyFile: cfg.Storage.KeyFile,
		MaxConns: cfg.Storage.MaxConns, FullSync: cfg.Storage.FullSync, Logger: log,
	}
}

// openHistory opens the database of the history, which may be unreachable; nil when history.enabled is false. A command
// that sets mustExist creates no SQLite file.
func openHistory(cfg *config.Config, log *slog.Logger, mustExist bool) (*storage.DB, error) {
	if !cfg.History.Enabled {
		return nil, nil
	}
	o := storageOptions(cfg, log)
	o.History, o.MustExist = true, mustExist
	return storage.Open(o)
}

type migrateCmd struct {
	configFlags
}

// Run brings the schema up to date, as serve and import do when they start.
func (c *migrateCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	store, err := openMigrated(ctx, cfg) // PostgreSQL needs no data directory
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(term.Out, "the schema is up to date")
	return err
}

// redisOptions returns the options for the Redis of the settings.
func redisOptions(cfg *config.Config, log *slog.Logger) redisx.Options {
	return redisx.Options{
		URL: cfg.Redis.URL.Reveal(), DataDir: cfg.DataDir, FullSync: cfg.Redis.FullSync, Logger: log,
		TLS: &clienttls.Files{CA: cfg.Redis.CAFile, Cert: cfg.Redis.CertFile, Key: cfg.Redis.KeyFile},
	}
}

// attachOptions returns redisOptions for a command that runs beside a daemon.
func attachOptions(cfg *config.Config) redisx.Options {
	o := redisOptions(cfg, nil)
	o.Attach = true
	return o
}
