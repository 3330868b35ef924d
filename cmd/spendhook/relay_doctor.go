package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/api/client"
	"spendhook/config"
	"spendhook/relay"
)

type relayDoctorCmd struct {
	relayFlags
	JSON    bool          `name:"json" help:"Print the findings as JSON."`
	Timeout time.Duration `default:"10s" help:"Time limit of each check."`
}

// Run checks the settings, the daemon with the token of each source, and each source. It sends no event and reads no
// record.
func (c *relayDoctorCmd) Run(ctx context.Context, term *stdio) error {
	d := &doctor{timeout: c.Timeout}
	var cfg *config.Relay
	var list []relaySource
	d.check(ctx, "settings", "they are valid", func(context.Context) {
		var err error
		if cfg, err = c.load(); err == nil {
			list, err = openSources(cfg, slog.New(slog.DiscardHandler), relay.NewMetrics(prometheus.NewRegistry()))
		}
		if err != nil {
			d.problem("correct the settings (docs/relay.md)", "%v", err)
		}
	})
	for _, s := range list {
		d.check(ctx, "daemon, for "+s.settings.Name, "it answers, and the token may send events of the source's companies", func(ctx context.Context) {
			d.relayToken(ctx, cfg, s.settings)
		})
		d.check(ctx, "source "+s.settings.Name, "it can be read, and dead records can be written", func(ctx context.Context) {
			if err := s.source.Check(ctx); err != nil {
				d.problem("make the source and its place for dead records available, or correct sources."+s.settings.Name, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		})
	}
	if err := d.print(term, c.JSON); err != nil {
		return err
	}
	if slices.ContainsFunc(d.findings, func(f finding) bool { return f.Result == findingProblem }) {
		return errDoctor
	}
	return nil
}

// relayToken sends an event without an id for each company: the daemon refuses it, after it has checked the token. For one
// of a company that nobody has, it must refuse the token.
func (d *doctor) relayToken(ctx context.Context, cfg *config.Relay, s config.RelaySource) {
	const remedy = "correct companies, or give the source a valid token of its company with the scope events:write"
	transport, err := relayTransport(cfg)
	if err != nil {
		d.problem("correct ca_file, cert_file and key_file", "%v", err)
		return
	}
	defer transport.CloseIdleConnections()
	api, err := client.New(cfg.URL, relayClient(s, transport))
	if err != nil {
		d.problem("correct url", "%v", err)
		return
	}
	for _, company := range s.Companies {
		err := sendWithoutID(ctx, api, company)
		refusal, answered := errors.AsType[*client.Error](err)
		switch {
		case answered && refusal.Status == http.StatusBadRequest:
		case answered && (refusal.Status == http.StatusUnauthorized || refusal.Status == http.StatusForbidden):
			d.problem(remedy, "company %s: %v", company, err)
		default:
			d.problem("start the daemon, or correct url and the certificates", "company %s: %v", company, err)
		}
	}
	if len(s.Companies) > 1 { // these need a token without a company
		return
	}
	refusal, answered := errors.AsType[*client.Error](sendWithoutID(ctx, api, uuid.New()))
	if answered && refusal.Status == http.StatusBadRequest {
		d.warn("give the source a token of its company (docs/tokens.md): whoever reads this one could send events of any company",
			"the token is valid for other companies, too")
	}
}

// sendWithoutID sends an event that is refused with 400 if the token may send events of the company.
func sendWithoutID(ctx context.Context, api *client.ClientWithResponses, company uuid.UUID) error {
	body := fmt.Sprintf(`{"companyUuid":%q}`, company)
	_, err := api.IngestEventsWithBodyWithResponse(ctx, &client.IngestEventsParams{}, "application/json", strings.NewReader(body))
	return err
}
