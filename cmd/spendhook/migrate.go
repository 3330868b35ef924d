package main

import (
	"context"
	"fmt"
)

type migrateCmd struct {
	storageFlags
}

// Run brings the schema up to date, as serve and import do when they start.
func (c *migrateCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := c.loadWith(map[string]string{"storage.url": c.Storage})
	if err != nil {
		return err
	}
	store, err := openMigrated(ctx, cfg) // of PostgreSQL without any data directory
	if err != nil {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(term.Out, "the schema is up to date")
	return err
}
