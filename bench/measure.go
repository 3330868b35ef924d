package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// sustained is the result of one run under load, until the last delivery is recorded.
type sustained struct {
	load     loadResult
	expected int64         // deliveries
	took     time.Duration // from the first event sent to the last delivery recorded
	cpu      usage
	repeats  int64
	opened   int64   // connections at the receiver
	bare     float64 // POSTs/s of the bare loop: the mean of the runs just before and after
}

func (r sustained) rate() float64     { return float64(r.expected) / r.took.Seconds() }
func (r sustained) ratio() float64    { return r.rate() / r.bare }
func (r sustained) accepted() float64 { return float64(r.load.Accepted) / r.load.Took.Seconds() }

// per returns CPU time in microseconds a delivery.
func (r sustained) per(t time.Duration) float64 {
	return float64(t.Microseconds()) / float64(r.expected)
}

// sustain puts load on the stack until spec ends, then waits until every accepted event is
// delivered fanOut times and recorded.
func (s *stack) sustain(ctx context.Context, spec loadSpec, fanOut int) (r sustained, err error) {
	if spec.Run, err = s.newRun(ctx); err != nil {
		return r, err
	}
	if spec.Clients = bareClients; spec.Targets == nil {
		spec.Targets = s.targets()
	}
	recorded, err := s.delivered(ctx)
	if err != nil {
		return r, err
	}
	quiet, err := s.receiver.tally(ctx)
	if err != nil {
		return r, err
	}
	r.opened = -quiet.Opened
	before, err := s.usage()
	if err != nil {
		return r, err
	}
	if r.load, before.load, err = generate(ctx, spec); err != nil {
		return r, err
	}
	before.load = -before.load
	if err := r.load.clean(); err != nil {
		return r, err
	}
	r.expected = r.load.Accepted * int64(fanOut)
	if err := s.awaitDistinct(ctx, r.expected); err != nil {
		return r, err
	}
	if err := s.awaitRecorded(ctx, recorded+r.expected); err != nil {
		return r, err
	}
	r.took = time.Since(r.load.Start)
	return r, s.finish(ctx, &r, before)
}

// finish adds the costs and the counts of a run whose deliveries are all recorded.
func (s *stack) finish(ctx context.Context, r *sustained, before usage) error {
	after, err := s.usage()
	if err != nil {
		return err
	}
	r.cpu = after.since(before)
	t, err := s.receiver.tally(ctx)
	if err != nil {
		return err
	}
	r.repeats = t.Repeats
	r.opened += t.Opened
	return s.awaitSettled(ctx, settleTime)
}

// clean returns an error unless each event was accepted at the first try.
func (r loadResult) clean() error {
	switch {
	case r.Lost > 0 || r.Retried > 0:
		return fmt.Errorf("load: %d events lost, %d requests sent again: %s", r.Lost, r.Retried, r.Trouble)
	case r.Accepted == 0:
		return errors.New("load: no event was accepted")
	}
	return nil
}

// rounds runs f in each round, between two runs of the bare loop.
func (b *bench) rounds(ctx context.Context, name string, s *stack, f func(context.Context) (sustained, error)) ([]sustained, error) {
	before, err := s.bare(ctx)
	if err != nil {
		return nil, err
	}
	b.note("%s: bare loop %.0f/s", name, before)
	var list []sustained
	for i := range b.Rounds {
		stopProfile := b.startProfile(ctx, s.daemons[0], b.LoadFor, name)
		r, err := f(ctx)
		if err = errors.Join(err, stopProfile()); err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		after, err := s.bare(ctx)
		if err != nil {
			return nil, err
		}
		r.bare = (before + after) / 2
		before = after
		b.note("%s: %.0f deliveries/s (bare %.0f, ratio %.2f), daemon %.0f µs, redis %.0f µs, %d repeats",
			name, r.rate(), r.bare, r.ratio(), r.per(r.cpu.daemon), r.per(r.cpu.redis), r.repeats)
		list = append(list, r)
	}
	return list, nil
}

// startProfile takes a CPU profile of the daemon during a round if --profile is set. The profile
// of the last round is kept. stop waits for the profile.
func (b *bench) startProfile(ctx context.Context, d *daemon, length time.Duration, name string) (stop func() error) {
	if b.Profile == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() {
		done <- d.profile(ctx, length, filepath.Join(b.Profile, name+".pprof"))
	}()
	return func() error { return <-done }
}

// each returns one number of each round.
func each[T any](list []T, f func(T) float64) []float64 {
	out := make([]float64, len(list))
	for i, r := range list {
		out[i] = f(r)
	}
	return out
}
