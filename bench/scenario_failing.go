package main

import (
	"context"
	"errors"
	"strings"
	"time"
)

// failing compares the attempts/s under load of a receiver that fails half of the attempts with
// those of a receiver that fails none.
func failing(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{delivery: everySecond()})
	if err != nil {
		return err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return err
	}
	var ratios, rates []float64
	for range b.Rounds {
		healthy, err := st.attempts(ctx, mode{}, 2*b.LoadFor)
		if err != nil {
			return err
		}
		sick, err := st.attempts(ctx, mode{Fail: 0.5}, 2*b.LoadFor)
		if err != nil {
			return err
		}
		b.note("failing: %.0f attempts/s, %.0f when half fail", healthy, sick)
		ratios, rates = append(ratios, sick/healthy), append(rates, sick)
	}
	b.add("failing", "attempts/s, of all-success", "", more, ratios...).goal(0.5)
	b.add("failing", "attempts", "1/s", more, rates...)
	return nil
}

// everySecond returns settings for a retry each second, 40 times.
func everySecond() string {
	return "jitter: 0, schedule: [" + strings.Repeat("1s, ", 40) + "]"
}

// attempts returns the attempts per second during the load. It waits until every event is
// delivered in the end.
func (s *stack) attempts(ctx context.Context, m mode, length time.Duration) (float64, error) {
	run, err := s.newRun(ctx)
	if err = errors.Join(err, s.receiver.set(ctx, 1, m)); err != nil {
		return 0, err
	}
	load, _, err := generate(ctx, loadSpec{
		Targets: s.targets(), Clients: bareClients, Run: run, Companies: 1, Batch: 1, Count: maxAhead, For: length,
	})
	if err = errors.Join(err, load.clean()); err != nil {
		return 0, err
	}
	t, err := s.receiver.tally(ctx)
	if err != nil {
		return 0, err
	}
	rate := float64(t.Attempts) / time.Since(load.Start).Seconds()
	if err := s.awaitDistinct(ctx, load.Accepted); err != nil {
		return 0, err
	}
	return rate, s.awaitSettled(ctx, settleTime)
}
