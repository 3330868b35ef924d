package main

import (
	"context"
	"errors"
	"time"
)

// bystander is a group of companies that send at a steady rate, and that the load of other
// companies must not affect. They have their own load generator and receiver processes.
type bystander struct {
	st        *stack
	companies []int
	rate      float64 // events/s, of all these companies together
	load      *paced
}

// bystanderResult is the result at a bystander's receiver. A latency is the time from the planned
// send time of an event until it is received. An event that is never received counts with the
// time since the run began.
type bystanderResult struct {
	tally
	lost    int64 // events that were not accepted or not received
	refused int64 // answers 429 and 503
}

// newBystander subscribes each company once, on an endpoint of stack.other.
func (s *stack) newBystander(ctx context.Context, companies []int, rate float64) (*bystander, error) {
	_, err := s.daemons[0].subscribeAll(ctx, s.other.subscriptions(companies, 1))
	return &bystander{st: s, companies: companies, rate: rate}, err
}

const bystanderClients = bareClients

// begin starts to send the events of a run. It sends until end, for limit at most.
func (y *bystander) begin(run int64, limit time.Duration) (err error) {
	y.load, err = startLoad(loadSpec{
		Targets: y.st.targets(), Clients: bystanderClients, Run: run, Of: y.companies, Batch: 1,
		Rate: y.rate, Count: maxEvents, For: limit,
	})
	return err
}

// end stops sending and waits until all events are received, for everyAttempt at most.
func (y *bystander) end(ctx context.Context) (n bystanderResult, err error) {
	load, err := y.load.stop(ctx)
	if err != nil {
		return n, err
	}
	other := y.st.other
	err = await(ctx, everyAttempt, func() (bool, error) {
		got, err := other.tally(ctx)
		return got.Distinct >= load.Accepted, err
	})
	if err != nil && !errors.Is(err, errLate) {
		return n, err
	}
	n.tally, err = other.latency(ctx, 0, len(other.Endpoints), load.Accepted)
	n.lost, n.refused = load.Lost+max(0, load.Accepted-n.Distinct), load.Refused
	return n, err
}

// sendDuring sends in a new run while f runs. An error of f ends the run.
func (y *bystander) sendDuring(ctx context.Context, limit time.Duration, f func(run int64) error) (n bystanderResult, err error) {
	run, err := y.st.newRun(ctx)
	if err != nil {
		return n, err
	}
	return y.sendDuringRun(ctx, run, limit, f)
}

// sendDuringRun is sendDuring in a run that has begun.
func (y *bystander) sendDuringRun(ctx context.Context, run int64, limit time.Duration, f func(run int64) error) (n bystanderResult, err error) {
	if err := y.begin(run, limit); err != nil {
		return n, err
	}
	if err := f(run); err != nil {
		y.load.Kill()
		return n, err
	}
	return y.end(ctx)
}

// alone measures the bystander without other load.
func (y *bystander) alone(ctx context.Context, length time.Duration) (bystanderResult, error) {
	return y.sendDuring(ctx, length, func(int64) error { return pause(ctx, length) })
}
