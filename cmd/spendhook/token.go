package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/auth"
	"spendhook/storage"
)

type tokenCmd struct {
	storageFlags

	Company *uuid.UUID    `help:"Company that the token is tied to (default: none; requests with the token may name any company)."`
	Scope   string        `required:"" help:"Scopes, separated by spaces, such as 'events:write deliveries:read'. docs/tokens.md lists them."`
	TTL     time.Duration `name:"ttl" default:"1h" help:"How long the token is valid."`
	Subject string        `default:"cli" help:"User that the token names (claim sub)."`
}

// Run prints a token signed with the daemon's key. It creates the key if there is none, so
// that a token can be minted before the first start. While the database is unavailable, it
// uses the keys of the data directory.
func (c *tokenCmd) Run(ctx context.Context, term *stdio) error {
	cfg, err := c.settings()
	if err != nil {
		return err
	}
	store, err := openStorage(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // what was written is committed
	if err := store.Migrate(ctx); err != nil && !errors.Is(err, storage.ErrUnavailable) {
		return err
	}
	keys, err := c.openKeys(ctx, store)
	if err != nil {
		return err
	}
	grant := auth.Grant{Subject: c.Subject, Company: c.Company, Scopes: strings.Fields(c.Scope), TTL: c.TTL}
	token, err := auth.Mint(ctx, keys, grant, time.Now())
	if err != nil {
		return usageError(err.Error())
	}
	_, err = fmt.Fprintln(term.Out, token)
	return err
}
