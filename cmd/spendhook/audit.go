package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/user"
	"strconv"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/config"
	"spendhook/internal/redisx"
)

// record tells the audit log of a change that this command has made.
func (f configFlags) record(ctx context.Context, term *console, e audit.Entry) error {
	cfg, err := f.load()
	if err != nil {
		return err
	}
	return recordChange(ctx, cfg, term.err, e)
}

// recordClient tells it of a change of a client.
func (f configFlags) recordClient(ctx context.Context, term *console, action, id string, company *uuid.UUID) error {
	return f.record(ctx, term, audit.Entry{
		Action: action, Target: audit.Target{Kind: "client", IDs: []string{id}}, CompanyUUID: company,
	})
}

// recordChange keeps a change that was made by the command line: in the Redis of
// the settings, or, when that is the daemon's own or away, in the data directory,
// for the daemon to move there. A change that was made is not undone when its
// entry cannot be kept; that is an error which has it.
func recordChange(ctx context.Context, cfg *config.Config, stderr io.Writer, e audit.Entry) (err error) {
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	opts := audit.Options{Dir: cfg.DataDir, Logger: log}
	if address := cfg.Redis.URL.Reveal(); address != redisx.Embedded {
		r, err := redisx.Open(ctx, redisOptions(cfg, log))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		opts.Store = audit.NewStore(r.Client())
	}
	l := audit.Open(opts) //nolint:contextcheck // it ends with Close
	defer l.Close()
	e.Actor, e.Address = systemUser()
	e.Outcome = cmp.Or(e.Outcome, audit.Success)
	l.Record(e)
	return nil
}

// systemUser names the operating system's user and host that run this command.
func systemUser() (actor audit.Actor, machine string) {
	actor = audit.Actor{Kind: audit.CommandLine, Subject: "uid " + strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		actor.Subject = u.Username
	}
	machine, _ = os.Hostname()
	return actor, machine
}
