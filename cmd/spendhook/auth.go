package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spendhook/auth"
	"spendhook/auth/clients"
	"spendhook/auth/keys"
	"spendhook/auth/tokens"
	"spendhook/config"
	"spendhook/internal/pause"
	"spendhook/internal/seal"
	"spendhook/storage"
)

// openKeys opens the keys that sign access tokens. The data directory must be
// there; the database need not.
func openKeys(ctx context.Context, cfg *config.Config, store *storage.DB, ring *seal.Keyring, log *slog.Logger, reg prometheus.Registerer) (*keys.Signer, error) {
	issuer, older := issuerNames(cfg)
	return keys.Open(ctx, keys.Options{
		Store: keys.Table(store), Keyring: ring, Dir: cfg.DataDir, Issuer: issuer, OldIssuers: older, Logger: log, Registerer: reg,
	})
}

// issuerNames are the "iss" of our tokens, and what it was before public_url
// was set. The server metadata must be found under it (RFC 8414 section 3), so
// it is the public address unless the settings say otherwise.
func issuerNames(cfg *config.Config) (issuer string, older []string) {
	if cfg.Auth.Issuer == config.DefaultIssuer && cfg.PublicURL != "" {
		return cfg.PublicURL, []string{config.DefaultIssuer}
	}
	return cfg.Auth.Issuer, nil
}

// openAuth needs no database to be there: what is known of the keys serves.
func (d *daemon) openAuth(ctx context.Context) (err error) {
	options := auth.VerifierOptions{Logger: d.log, Registerer: d.registry}
	if d.cfg.Auth.Builtin {
		if d.keys, err = openKeys(ctx, d.cfg, d.storage, d.keyring, d.log, d.registry); err != nil {
			return err
		}
		d.clients = clients.NewStore(d.storage, nil)
		options.Keys, options.Revoked = d.keys, d.clients.Revoked
		d.tokens = tokens.NewEndpoint(tokens.Options{
			Keys: d.keys, Clients: d.clients, Limiter: d.limiter, Logger: d.log, Registerer: d.registry,
		})
		d.background(ctx, "keys and clients", d.followAuth)
	}
	for _, i := range d.cfg.Auth.Issuers {
		options.External = append(options.External, auth.Issuer{
			Name: i.Issuer, JWKSURL: i.JWKSURL, Audience: i.Audience, Scopes: i.Scopes,
			ScopeClaim: i.ScopeClaim, CompanyClaim: i.CompanyClaim, Keep: d.cfg.Auth.KeepKeys,
		})
	}
	if d.verifier, err = auth.NewVerifier(options); err != nil {
		return err
	}
	d.background(ctx, "issuers", d.verifier.Run)
	return nil
}

// followAuth learns of other keys, and of clients that were disabled, until ctx
// ends. That the database is away is logged where it is watched.
func (d *daemon) followAuth(ctx context.Context) {
	failing := false
	for wait := time.Duration(0); pause.For(ctx, wait); wait = keys.SyncInterval {
		err := errors.Join(d.keys.Sync(ctx), d.clients.Sync(ctx))
		if ctx.Err() != nil || errors.Is(err, storage.ErrUnavailable) {
			continue
		}
		if err != nil && !failing {
			d.log.Error("token keys or clients cannot be followed, the last known go on being used", "exception.message", err)
		}
		failing = err != nil
	}
}

// openAuthTools opens what the commands about keys and clients work on, beside
// a daemon that may run. The caller closes the store.
func (f storageFlags) openAuthTools(ctx context.Context) (*storage.DB, *keys.Signer, error) {
	store, err := f.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	keys, err := f.openKeys(ctx, store)
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return store, keys, nil
}

func (f storageFlags) openKeys(ctx context.Context, store *storage.DB) (*keys.Signer, error) {
	cfg, err := f.settings()
	if err != nil {
		return nil, err
	}
	if !cfg.Auth.Builtin {
		return nil, errors.New("auth.builtin is off: this daemon accepts no tokens of its own")
	}
	ring, err := openKeyring(cfg, seal.ReadOwnFile)
	if err != nil {
		return nil, err
	}
	return openKeys(ctx, cfg, store, ring, nil, nil)
}
