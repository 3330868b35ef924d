package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/audit"
	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/config"
	"spendhook/internal/pause"
	"spendhook/internal/seal"
	"spendhook/storage"
)

// openKeys opens the keys that sign access tokens. The data directory must exist; the database may
// be unavailable.
func openKeys(ctx context.Context, cfg *config.Config, store *storage.DB, ring *seal.Keyring, log *slog.Logger, reg prometheus.Registerer) (*keys.Signer, error) {
	issuer := config.DefaultIssuer
	if cfg.PublicURL != "" {
		issuer = cfg.PublicURL // clients look for the server metadata there, RFC 8414 section 3
	}
	return keys.Open(ctx, keys.Options{
		Store: keys.Table(store), Keyring: ring, Dir: cfg.DataDir, Issuer: issuer, Logger: log, Registerer: reg,
	})
}

// openAuth opens the verifier of access tokens and, for the built-in issuer, the signing keys, the
// clients and the token endpoint. While the database is unavailable, it uses the keys in the data
// directory.
func (d *daemon) openAuth(ctx context.Context) (err error) {
	options := auth.VerifierOptions{Logger: d.log, Registerer: d.registry}
	if d.cfg.Auth.Builtin {
		if d.keys, err = openKeys(ctx, d.cfg, d.storage, d.keyring, d.log, d.registry); err != nil {
			return err
		}
		d.clients = clients.NewStore(d.storage, nil)
		options.Keys, options.Revoked = d.keys, d.clients.Revoked
		d.tokens = tokens.NewEndpoint(tokens.Options{
			Keys: d.keys, Clients: d.clients, Limiter: d.limiter, Registerer: d.registry,
		})
		d.background(ctx, d.followAuth)
	}
	for _, i := range d.cfg.Auth.Issuers {
		options.External = append(options.External, auth.Issuer{
			Name: i.Issuer, JWKSURL: i.JWKSURL, Audience: i.Audience, Scopes: i.Scopes,
			ScopeClaim: i.ScopeClaim, CompanyClaim: i.CompanyClaim,
		})
	}
	if d.verifier, err = auth.NewVerifier(options); err != nil {
		return err
	}
	d.background(ctx, d.verifier.Run)
	return nil
}

// followAuth syncs keys and clients with the database until ctx ends. It does not log that the
// database is unavailable: databaseWatch does.
func (d *daemon) followAuth(ctx context.Context) {
	failing := false
	for wait := time.Duration(0); pause.For(ctx, wait); wait = keys.SyncInterval {
		err := errors.Join(d.keys.Sync(ctx), d.clients.Sync(ctx))
		if ctx.Err() != nil || errors.Is(err, storage.ErrUnavailable) {
			continue
		}
		if err != nil && !failing {
			d.log.Error("sync of token keys and clients failed; the last known ones stay in use", "exception.message", err)
		}
		failing = err != nil
	}
}

// openTokenKeys opens the database and the keys that sign access tokens, for a command that runs
// beside the daemon. The caller closes the database.
func (f configFlags) openTokenKeys(ctx context.Context) (*storage.DB, *keys.Signer, error) {
	cfg, err := f.settings()
	if err != nil {
		return nil, nil, err
	}
	if !cfg.Auth.Builtin {
		return nil, nil, errors.New("auth.builtin is off: this daemon accepts no tokens of its own")
	}
	ring, err := openKeyring(cfg, seal.ReadOwnFile) // unlike the daemon, it creates no encryption key
	if err != nil {
		return nil, nil, err
	}
	store, err := openMigrated(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	signer, err := openKeys(ctx, cfg, store, ring, nil, nil)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, signer, nil
}

type tokenCmd struct {
	configFlags

	Company *uuid.UUID    `help:"Company that the token is tied to (default: none; requests with the token may name any company)."`
	Scope   string        `required:"" help:"Scopes, separated by spaces, such as 'events:write deliveries:read'. docs/tokens.md lists them."`
	TTL     time.Duration `name:"ttl" default:"1h" help:"How long the token is valid, at most 24h."`
	Subject string        `default:"cli" help:"User that the token names (claim sub)."`
}

// Run prints a token signed with the daemon's key.
func (c *tokenCmd) Run(ctx context.Context, term *stdio) error {
	store, signer, err := c.openTokenKeys(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // all writes are committed
	grant := auth.Grant{Subject: c.Subject, Company: c.Company, Scopes: strings.Fields(c.Scope), TTL: c.TTL}
	token, err := auth.Mint(signer, grant, time.Now())
	if err != nil {
		return usageError(err.Error())
	}
	err = c.record(ctx, term, audit.Entry{
		Action: "token.create", Target: audit.Target{Kind: "token", IDs: []string{c.Subject}}, CompanyUUID: c.Company,
		Detail: fmt.Sprintf("%s for %v", c.Scope, c.TTL),
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(term.Out, token)
	return err
}
