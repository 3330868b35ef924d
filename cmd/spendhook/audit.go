package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/user"
	"strconv"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/auth/clients"
	"spendhook/internal/redisx"
)

// clientCreated is the audit entry about a new client.
func clientCreated(client clients.Client) audit.Entry {
	return audit.Entry{
		Action: "client.create", Target: audit.Target{Kind: "client", IDs: []string{client.ID}}, CompanyUUID: (*uuid.UUID)(client.Company),
		Outcome: audit.Success,
	}
}

// record writes an audit entry about a change that this command has made. When Redis is
// embedded or unreachable, it writes the entry to the data directory, and the daemon moves it
// to Redis later. If that fails too, it logs the entry to stderr; the change is not undone.
func (f configFlags) record(ctx context.Context, term *stdio, e audit.Entry) (err error) {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(term.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	opts := audit.Options{Dir: cfg.DataDir, Logger: log}
	if cfg.Redis.URL != redisx.Embedded {
		r, err := redisx.Open(ctx, redisOptions(cfg, log))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		opts.Client = r.Client()
	}
	l := audit.Open(opts) //nolint:contextcheck // Close stops its background work
	defer l.Close()
	e.Actor, e.Address = systemUser()
	e.Outcome = cmp.Or(e.Outcome, audit.Success)
	l.Record(e) //nolint:contextcheck // an interrupted command still writes the entry
	return nil
}

// systemUser returns the user of the operating system and the host that run this command.
func systemUser() (actor audit.Actor, host string) {
	actor = audit.Actor{Kind: audit.CommandLine, Subject: "uid " + strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		actor.Subject = u.Username
	}
	host, _ = os.Hostname()
	return actor, host
}
