package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"spendhook/api"
	"spendhook/canary"
	"spendhook/config"
)

// canaryURL is where deliveries to the canary arrive.
func canaryURL(publicURL string) string { return strings.TrimRight(publicURL, "/") + api.CanaryRoute }

// hasCanary reports whether the canary is on.
func hasCanary(cfg *config.Config) bool { return cfg.Canary.Company != uuid.Nil }

// openCanary starts the canary. Its first delivery waits until openIntake serves the API.
func (d *daemon) openCanary(ctx context.Context) error {
	if !hasCanary(d.cfg) {
		return nil
	}
	company := d.cfg.Canary.Company
	c, err := canary.New(canary.Options{
		Company: company, URL: canaryURL(d.publicURL()), Subscribers: d.subscribers, Registry: d.subscriberRegistry, Health: d.health,
		Accept: d.publisher.Accept, Owns: func() bool { return d.dispatcher.Queue.Token(company) != "" },
		Audit: d.audit.Record, Logger: d.log, Registerer: d.registry,
	})
	if err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	d.canary = c
	d.background(ctx, c.Run)
	return nil
}
