package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

const (
	manyCompanies   = 100_000
	manySubscribers = 3 // of each company
	stopTime        = time.Minute
)

// companiesResult is one round of companies.
type companiesResult struct {
	one, cold, warm sustained
	resident        float64
}

// ofBare returns the events/s of a run divided by the rate of the bare loop.
func ofBare(r sustained) float64 { return float64(r.load.Accepted) / r.took.Seconds() / r.bare }

// companies sends one event to each of many companies after a restart of the daemon, and then
// one more to each.
func companies(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return err
	}
	defer st.stop()
	n := b.scaled(manyCompanies, 100)
	if err := b.subscribeMany(ctx, st, n); err != nil {
		return err
	}
	var rounds []companiesResult
	for range b.Rounds {
		r, err := b.manyRound(ctx, st, n)
		if err != nil {
			return err
		}
		rounds = append(rounds, r)
	}
	const name = "companies"
	addOf(b, name, "cold, events/s of bare, of one", "", more, rounds, func(r companiesResult) float64 { return ofBare(r.cold) / ofBare(r.one) }).goal(0.45)
	addOf(b, name, "warm, events/s of bare, of one", "", more, rounds, func(r companiesResult) float64 { return ofBare(r.warm) / ofBare(r.one) }).goal(0.6)
	addOf(b, name, "cold, deliveries/s of bare, of one", "", more, rounds, func(r companiesResult) float64 { return r.cold.ratio() / r.one.ratio() })
	addOf(b, name, "warm, deliveries/s of bare, of one", "", more, rounds, func(r companiesResult) float64 { return r.warm.ratio() / r.one.ratio() })
	addOf(b, name, "one", "events/s", more, rounds, func(r companiesResult) float64 { return r.one.rate() })
	addOf(b, name, "cold", "events/s", more, rounds, func(r companiesResult) float64 { return r.cold.rate() / manySubscribers })
	addOf(b, name, "warm", "events/s", more, rounds, func(r companiesResult) float64 { return r.warm.rate() / manySubscribers })
	addOf(b, name, "daemon, most resident", "MB", less, rounds, func(r companiesResult) float64 { return r.resident / 1e6 }).goal(500)
	addRefusals(b, name, "answers 429 and 503", rounds, func(r companiesResult) float64 {
		return float64(r.one.load.Refused + r.cold.load.Refused + r.warm.load.Refused)
	})
	return nil
}

// subscribeMany subscribes n companies, and one more for the figures of "one".
func (b *bench) subscribeMany(ctx context.Context, st *stack, n int) error {
	start := time.Now()
	if _, err := st.subscribe(ctx, n, manySubscribers); err != nil {
		return err
	}
	b.note("companies: %d subscribers in %.0f s", n*manySubscribers, time.Since(start).Seconds())
	_, err := st.daemons[0].subscribeAll(ctx, st.receiver.subscriptions([]int{n}, 1))
	return err
}

// manyRound begins with a restart, so that the daemon has no company in memory.
func (b *bench) manyRound(ctx context.Context, st *stack, n int) (r companiesResult, err error) {
	if err := st.restartDaemon(ctx); err != nil {
		return r, err
	}
	r.one, err = b.once(ctx, "companies, one", st, loadSpec{Of: []int{n}, Batch: 1, Count: maxAhead, For: b.LoadFor}, 1)
	if err != nil {
		return r, err
	}
	all := loadSpec{Companies: n, Batch: 1, Count: int64(n), For: drainTime}
	if r.cold, err = b.once(ctx, "companies, cold", st, all, manySubscribers); err != nil {
		return r, err
	}
	if r.warm, err = b.once(ctx, "companies, warm", st, all, manySubscribers); err != nil {
		return r, err
	}
	peak, err := peakMemory(st.daemons[0].Pid())
	r.resident = float64(peak)
	b.note("companies: %.0f MB resident", r.resident/1e6)
	return r, err
}

// once makes one run under load, between two runs of the bare loop.
func (b *bench) once(ctx context.Context, name string, s *stack, spec loadSpec, fanOut int) (r sustained, err error) {
	one := &bench{settings: b.settings, progress: b.progress}
	one.Rounds = 1
	list, err := one.rounds(ctx, name, s, func(ctx context.Context) (sustained, error) { return s.sustain(ctx, spec, fanOut) })
	if err != nil {
		return r, err
	}
	return list[0], nil
}

// restartDaemon stops the only daemon with SIGTERM and starts it again.
func (s *stack) restartDaemon(ctx context.Context) error {
	d := s.daemons[0]
	if err := d.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-d.Done():
	case <-time.After(stopTime):
		return fmt.Errorf("stop %s: %w", d.name, errLate)
	case <-ctx.Done():
		return ctx.Err()
	}
	again, err := d.restart(ctx)
	if err != nil {
		return errors.Join(err, d.Err())
	}
	s.daemons[0] = again
	return nil
}
