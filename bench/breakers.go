package main

import (
	"context"
	"fmt"
	"time"
)

const (
	breakerEndpoints = 1000      // endpoints without a listener
	behindBreakers   = 1_000_000 // deliveries that wait for them
	eventsToOpen     = 12        // events to each endpoint: more than the failures that open a breaker
	breakersLimit    = 2 * time.Minute
)

// openBreakers gives a company n subscribers on an address that refuses connections, and returns
// when all of their breakers are open. Each subscriber has its own event type, so that a load
// with loadSpec.Types n sends to all of them.
func (s *stack) openBreakers(ctx context.Context, company, n int) error {
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
	if _, err := s.postArrays(ctx, loadSpec{Run: run, Of: []int{company}, Types: n, Count: int64(n * eventsToOpen), For: drainTime}); err != nil {
		return err
	}
	var open int64
	err = await(ctx, breakersLimit, func() (bool, error) {
		open, err = s.daemons[0].count(ctx, `spendhook_endpoints{state="open"}`)
		return open >= int64(n), err
	})
	if err != nil {
		return fmt.Errorf("%d of %d breakers are open: %w", open, n, err)
	}
	return nil
}

const arraySize = 100 // events

// postArrays posts arrays without pause until spec ends. It sends a refused array again and
// counts the refusal.
func (s *stack) postArrays(ctx context.Context, spec loadSpec) (loadResult, error) {
	spec.Targets, spec.Clients, spec.Batch = s.targets(), bareClients, arraySize
	r, _, err := generate(ctx, spec)
	if err == nil && r.Lost > 0 {
		err = fmt.Errorf("%d events were never answered: %s", r.Lost, r.Trouble)
	}
	return r, err
}
