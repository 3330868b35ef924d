package main

import (
	"context"
	"fmt"
	"time"
)

const (
	openBreakers  = 1000      // endpoints without a listener
	behindOpen    = 1_000_000 // deliveries that wait for them
	eventsToOpen  = 12        // failures in a row that open a breaker, and some more
	breakersLimit = 2 * time.Minute
)

// breakBreakers gives a company n subscribers on an address that refuses
// connections, each with a type of events of its own, and returns when all of
// their breakers are open. loadSpec.Types sends to them.
func (s *stack) breakBreakers(ctx context.Context, company, n int) error {
	dead, err := deadAddress(ctx)
	if err != nil {
		return err
	}
	var list []subscription
	for i := range n {
		list = append(list, subscription{company: company, name: "dead", url: fmt.Sprintf("%s/%d", dead, i), event: numberedType(i)})
	}
	if _, err := s.daemons[0].subscribeAll(ctx, list); err != nil {
		return err
	}
	run, err := s.newRun(ctx)
	if err != nil {
		return err
	}
	if _, err := s.pile(ctx, loadSpec{Run: run, Of: []int{company}, Types: n, Count: int64(n * eventsToOpen), For: drainTime}); err != nil {
		return err
	}
	var open int64
	err = await(ctx, breakersLimit, func() (bool, error) {
		open, err = s.daemons[0].brokenEndpoints(ctx)
		return open >= int64(n), err
	})
	if err != nil {
		return fmt.Errorf("%d of %d breakers are open: %w", open, n, err)
	}
	return nil
}

// brokenEndpoints is how many breakers are open, or open but for a probe.
func (d *daemon) brokenEndpoints(ctx context.Context) (int64, error) {
	open, err := d.count(ctx, `spendhook_endpoints{state="open"}`)
	if err != nil {
		return 0, err
	}
	probed, err := d.count(ctx, `spendhook_endpoints{state="half_open"}`)
	return open + probed, err
}

const pileBatch = 100 // events in an array

// pile posts arrays without pause until spec ends. An array that is refused is
// sent again, and counted.
func (s *stack) pile(ctx context.Context, spec loadSpec) (loadResult, error) {
	spec.Targets, spec.Clients, spec.Batch = s.targets(), bareClients, pileBatch
	r, _, err := generate(ctx, spec)
	if err == nil && r.Lost > 0 {
		err = fmt.Errorf("%d events were never answered: %s", r.Lost, r.Trouble)
	}
	return r, err
}
