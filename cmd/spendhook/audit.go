package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/audit"
	"spendhook/config"
	"spendhook/internal/redisx"
)

type auditCmd struct {
	Export auditExportCmd `cmd:"" help:"Write the audit log as NDJSON, the newest entry first."`
}

type auditExportCmd struct {
	clientFlags

	From    time.Time  `help:"Recorded from here on, RFC 3339."`
	To      time.Time  `help:"And up to here (default: now)."`
	Actor   string     `help:"Only changes by this subject or client."`
	Action  string     `help:"Only this action, as in card.lock, or all of a kind, as in card."`
	Target  string     `help:"Only changes of the thing with this id."`
	Company *uuid.UUID `help:"Only this company's."`
}

// Run writes the entries as they come. An export that is cut off is an error.
func (c *auditExportCmd) Run(ctx context.Context, term *console) error {
	api, err := c.client(func(o *client.Options) { o.Timeout = -1 }) // it takes as long as it is long
	if err != nil {
		return err
	}
	resp, err := api.ListAudit(ctx, c.params(), func(_ context.Context, req *http.Request) error {
		req.Header.Set("Accept", "application/x-ndjson")
		return nil
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(term.out, resp.Body); err != nil {
		return fmt.Errorf("the export is not whole: %w", err)
	}
	return nil
}

func (c *auditExportCmd) params() *client.ListAuditParams {
	p := &client.ListAuditParams{
		CompanyUUID: c.Company, Actor: given(c.Actor), Action: given(c.Action), Target: given(c.Target),
	}
	if !c.From.IsZero() {
		p.From = &c.From
	}
	if !c.To.IsZero() {
		p.To = &c.To
	}
	return p
}

// given is nil for a flag that was not given.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

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

// systemUser is who runs this command, and on which machine.
func systemUser() (actor audit.Actor, machine string) {
	actor = audit.Actor{Kind: audit.CommandLine, Subject: "uid " + strconv.Itoa(os.Getuid())}
	if u, err := user.Current(); err == nil {
		actor.Subject = u.Username
	}
	machine, _ = os.Hostname()
	return actor, machine
}
