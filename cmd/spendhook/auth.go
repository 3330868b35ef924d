package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"spendhook/api"
	"spendhook/auth"
	"spendhook/config"
	"spendhook/internal/pause"
	"spendhook/internal/seal"
	"spendhook/storage"
)

// openKeys opens the keys that sign access tokens. The data directory must be
// there; the database need not.
func openKeys(ctx context.Context, cfg *config.Config, store *storage.DB, ring *seal.Keyring, log *slog.Logger) (*auth.Keys, error) {
	issuer, older := issuerNames(cfg)
	return auth.OpenKeys(ctx, auth.KeysOptions{
		Store: auth.KeyTable{DB: store}, Keyring: ring, Dir: cfg.DataDir, Issuer: issuer, OldIssuers: older, Logger: log,
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
	metrics := auth.NewMetrics(d.registry)
	options := auth.VerifierOptions{}
	if d.cfg.Auth.Builtin {
		if d.keys, err = openKeys(ctx, d.cfg, d.storage, d.keyring, d.log); err != nil {
			return err
		}
		clients := auth.NewClients(d.storage, nil)
		d.clients = clients
		options.Keys, options.Clients = d.keys, clients
		d.tokens = auth.NewEndpoint(auth.EndpointOptions{
			Keys: d.keys, Clients: clients, Limiter: d.limiter, Logger: d.log, Metrics: metrics,
		})
		d.background(ctx, "keys and clients", func(ctx context.Context) { d.followAuth(ctx, clients) })
	}
	for _, i := range d.cfg.Auth.Issuers {
		issuer, err := auth.NewIssuer(auth.IssuerOptions{
			Issuer: i.Issuer, JWKSURL: i.JWKSURL, Audience: i.Audience, Scopes: i.Scopes,
			ScopeClaim: i.ScopeClaim, CompanyClaim: i.CompanyClaim, Keep: d.cfg.Auth.KeepKeys, Logger: d.log, Metrics: metrics,
		})
		if err != nil {
			return err
		}
		options.External = append(options.External, issuer)
		d.background(ctx, "issuer", issuer.Run)
	}
	d.verifier = auth.NewVerifier(options)
	return nil
}

// followAuth learns of other keys, and of clients that were disabled, until ctx
// ends. That the database is away is logged where it is watched.
func (d *daemon) followAuth(ctx context.Context, clients *auth.Clients) {
	failing := false
	for wait := time.Duration(0); pause.For(ctx, wait); wait = auth.SyncInterval {
		err := errors.Join(d.keys.Sync(ctx), clients.Sync(ctx))
		if ctx.Err() != nil || errors.Is(err, storage.ErrUnavailable) {
			continue
		}
		if err != nil && !failing {
			d.log.Error("token keys or clients cannot be followed, the last known go on being used", "exception.message", err)
		}
		failing = err != nil
	}
}

// tokenEndpoint is nil, and not a nil *auth.Endpoint, without one.
func (d *daemon) tokenEndpoint() api.Tokens {
	if d.tokens == nil {
		return nil
	}
	return d.tokens
}

// oauthClients is nil, and not a nil *auth.Clients, without them.
func (d *daemon) oauthClients() api.Clients {
	if d.clients == nil {
		return nil
	}
	return d.clients
}

// openAuthTools opens what the commands about keys and clients work on, beside
// a daemon that may run. The caller closes the store.
func (f storageFlags) openAuthTools(ctx context.Context) (*storage.DB, *auth.Keys, error) {
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

func (f storageFlags) openKeys(ctx context.Context, store *storage.DB) (*auth.Keys, error) {
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
	return openKeys(ctx, cfg, store, ring, nil)
}
