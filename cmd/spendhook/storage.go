package main

import (
	"context"
	"log/slog"

	"spendhook/config"
	"spendhook/storage"
)

// storageFlags are the flags of the commands that open the spend database.
type storageFlags struct {
	configFlags

	Storage string `placeholder:"URL" help:"postgres:// address of the spend database; without it, SQLite in the data directory."`
}

// open opens the database and brings its schema up to date. The caller closes it.
func (f storageFlags) open(ctx context.Context) (*storage.DB, error) {
	cfg, err := f.loadWith(map[string]string{"storage.url": f.Storage})
	if err != nil {
		return nil, err
	}
	store, err := openStorage(cfg, nil)
	if err != nil {
		return nil, err
	}
	if err := store.Migrate(ctx); err != nil {
		_ = store.Close() // it was not used
		return nil, err
	}
	return store, nil
}

func openStorage(cfg *config.Config, log *slog.Logger) (*storage.DB, error) {
	return storage.Open(storage.Options{
		URL: cfg.Storage.URL.Reveal(), DataDir: cfg.DataDir,
		MaxConns: cfg.Storage.MaxConns, FullSync: cfg.Storage.FullSync, Logger: log,
	})
}
