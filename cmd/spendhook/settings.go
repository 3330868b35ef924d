package main

import (
	"maps"
	"os"

	"github.com/google/uuid"

	"spendhook/config"
	"spendhook/dispatcher/delivery/lifecycle"
	"spendhook/events/eventtype"
	"spendhook/internal/ratelimit"
)

// configFlags are the flags of the commands that read the daemon's settings.
type configFlags struct {
	Config  string `env:"SPENDHOOK_CONFIG" help:"Configuration file (YAML)."`
	DataDir string `help:"Directory of the daemon's key, identity, embedded Redis and SQLite database."`
}

func (f configFlags) load() (*config.Config, error) { return f.loadWith(nil) }

// loadWith reads file and environment, overridden by those of the overrides
// that are not empty.
func (f configFlags) loadWith(overrides map[string]string) (*config.Config, error) {
	cfg, err := config.Load(f.Config, os.Environ(), f.flags(overrides))
	return &cfg, err
}

// loadDaemon is loadWith for commands that serve. It also refuses settings that leave the
// daemon unprotected.
func (f configFlags) loadDaemon(overrides map[string]string) (*config.Config, error) {
	cfg, err := config.LoadDaemon(f.Config, os.Environ(), f.flags(overrides))
	return &cfg, err
}

func (f configFlags) flags(others map[string]string) map[string]string {
	all := map[string]string{"data_dir": f.DataDir}
	maps.Copy(all, others)
	return all
}

func newCatalogue(cfg *config.Config) *eventtype.Catalogue {
	extra := make([]eventtype.Type, len(cfg.Events.Catalogue))
	for i, t := range cfg.Events.Catalogue {
		extra[i] = eventtype.Type{Name: t.Name, Description: t.Description}
	}
	return eventtype.NewCatalogue(extra, cfg.Events.StrictCatalogue)
}

// operationsCompany is the zero UUID when no company is set.
func operationsCompany(cfg *config.Config) uuid.UUID {
	company, _ := uuid.Parse(cfg.Operations.Company) // it is valid or empty
	return company
}

// rateLimits are those of requests.
func rateLimits(l config.Limits) (client, company ratelimit.Limit) {
	return ratelimit.Limit{PerSecond: float64(l.ClientRate), Burst: l.ClientBurst},
		ratelimit.Limit{PerSecond: float64(l.CompanyRate), Burst: l.CompanyBurst}
}

func deliveryPolicy(cfg *config.Config) lifecycle.Policy {
	return lifecycle.Policy{
		Schedule:      cfg.Delivery.Schedule,
		Jitter:        cfg.Delivery.Jitter,
		RetryAfterMax: cfg.Delivery.RetryAfterMax,
		DeadRetention: cfg.Delivery.DeadRetention,
		Retention:     cfg.Events.Retention,
		KeepDelivered: cfg.Events.KeepDelivered,
		FailingAfter:  cfg.Delivery.FailingAfter,
		DisableAfter:  cfg.Delivery.DisableAfter,
	}
}
