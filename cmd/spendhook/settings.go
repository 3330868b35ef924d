package main

import (
	"fmt"
	"os"
	"time"

	"spendhook/canary"
	"spendhook/config"
	"spendhook/dispatcher/delivery"
	"spendhook/events/eventtype"
	"spendhook/internal/ratelimit"
)

// configFlags are the flags of the commands that read the daemon's settings.
type configFlags struct {
	Config  string `env:"SPENDHOOK_CONFIG" placeholder:"FILE" help:"Configuration file (YAML)."`
	DataDir string `placeholder:"DIR" help:"Directory of the daemon's key, identity, embedded Redis and SQLite database."`
	Redis   string `placeholder:"URL" help:"'embedded', or the URL of a Redis (redis://, rediss://, redis+sentinel://, redis+cluster://)."`
	Storage string `placeholder:"URL" help:"postgres:// URL of the spend database (default: SQLite in the data directory)."`
}

// overrides are the settings that the flags set.
func (f configFlags) overrides() map[string]string {
	return map[string]string{"data_dir": f.DataDir, "redis": f.Redis, "storage.url": f.Storage}
}

// load reads the file, the environment and the flags.
func (f configFlags) load() (*config.Config, error) {
	cfg, err := config.Load(f.Config, os.Environ(), f.overrides())
	return &cfg, err
}

func newCatalogue(cfg *config.Config) *eventtype.Catalogue {
	extra := make([]eventtype.Type, len(cfg.Events.Catalogue))
	for i, name := range cfg.Events.Catalogue {
		extra[i] = eventtype.Type{Name: name}
	}
	if hasCanary(cfg) {
		extra = append(extra, eventtype.Type{Name: canary.EventType, Description: "proves that deliveries arrive; raised by the daemon only"})
	}
	return eventtype.NewCatalogue(extra, cfg.Events.StrictCatalogue)
}

// rateLimits returns the limits of requests, of each client and of each company.
func rateLimits(l config.Limits) (client, company ratelimit.Limit) {
	return ratelimit.Limit{PerSecond: float64(l.ClientRate), Burst: l.ClientBurst},
		ratelimit.Limit{PerSecond: float64(l.CompanyRate), Burst: l.CompanyBurst}
}

// longestRetries is how long the retries of a subscriber may take: with their jitter, they end while the event is kept.
func longestRetries(cfg *config.Config) time.Duration {
	return time.Duration(float64(cfg.Events.Retention) / (1 + cfg.Delivery.Jitter))
}

func deliveryPolicy(cfg *config.Config) delivery.Policy {
	return delivery.Policy{
		Schedule:      cfg.Delivery.Schedule,
		Jitter:        cfg.Delivery.Jitter,
		RetryAfterMax: 24 * time.Hour,
		DeadRetention: cfg.Delivery.DeadRetention,
		Retention:     cfg.Events.Retention,
		KeepDelivered: cfg.Events.KeepDelivered,
		FailingAfter:  cfg.Delivery.FailingAfter,
		DisableAfter:  cfg.Delivery.DisableAfter,
	}
}

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check the configuration, and list all errors." example:"spendhook config check spendhook.yml"`
}

type configCheckCmd struct {
	File string `arg:"" optional:"" env:"SPENDHOOK_CONFIG" help:"Configuration file (YAML)."`
}

// Run reads the file and the environment as serve would.
func (c *configCheckCmd) Run(term *stdio) error {
	if _, err := config.LoadDaemon(c.File, os.Environ(), nil); err != nil {
		return err
	}
	_, err := fmt.Fprintln(term.Out, "the configuration is valid")
	return err
}
