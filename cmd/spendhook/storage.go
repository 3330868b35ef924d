package main

import (
	"context"
	"log/slog"

	"spendhook/config"
	"spendhook/internal/datadir"
	"spendhook/storage"
)

// storageFlags are the flags of the commands that open the spend database.
type storageFlags struct {
	configFlags

	Storage string `placeholder:"URL" help:"postgres:// URL of the spend database (default: SQLite in the data directory)."`
}

// settings loads the settings of a command that works in the daemon's data directory.
func (f storageFlags) settings() (*config.Config, error) {
	cfg, err := f.loadWith(map[string]string{"storage.url": f.Storage})
	if err != nil {
		return nil, err
	}
	return cfg, datadir.Check(cfg.DataDir)
}

// open opens the database, which must be there, and brings its schema up to date.
// The caller closes it.
func (f storageFlags) open(ctx context.Context) (*storage.DB, error) {
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
		_ = store.Close() // it was not used
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
