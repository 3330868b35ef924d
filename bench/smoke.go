package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// smokeCmd runs most scenarios for as short a time as they allow. A scenario fails when an
// accepted event is not delivered to every subscriber and recorded, or when an event stays
// pending.
type smokeCmd struct {
	Spendhook string `default:"bin/spendhook" help:"The daemon's program."`
}

// Run checks that no event is lost. It does not judge the speed.
func (c *smokeCmd) Run(ctx context.Context, term *console) error {
	chosen, err := choose([]string{
		"one", "batch", "fanout", "signatures", "fields", "ports", "backlog", "always", "failing", "spend", "takeover", "restart",
		"tenants", "tenants1000", "backlogged", "rare", "lostqueue", "samehost", "replicas", "companies", "cluster",
	})
	if err != nil {
		return err
	}
	b := &bench{progress: term.err, settings: settings{
		Spendhook: c.Spendhook, Rounds: 1, Kills: 1, Backlog: 2000,
		LoadFor: time.Second, BareFor: 200 * time.Millisecond, PacedFor: time.Second, Spend: 5000,
		Scale: 0.01, FloodFor: time.Second, DrainFor: 2 * time.Second, StopFor: time.Second,
		Shapes: []string{"fast", "openbreakers"}, Replicas: []int{2},
	}}
	if err := errors.Join(b.runAll(ctx, chosen), b.missed()); err != nil {
		return err
	}
	fmt.Fprintln(term.out, "every accepted event was delivered, every request answered")
	return nil
}
