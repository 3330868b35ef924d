package main

import "context"

// blocked measures the cost of deliveries that wait for open breakers.
func blocked(ctx context.Context, b *bench) error {
	var empty, full, refused []float64
	for range b.Rounds {
		quiet, share, load, err := b.blockedRound(ctx)
		if err != nil {
			return err
		}
		empty, full = append(empty, 100*quiet), append(full, 100*share)
		refused = append(refused, float64(load.Refused))
	}
	b.add("blocked", "daemon and redis", "% of a core", less, full...).goal(5)
	b.add("blocked", "the same with nothing pending", "% of a core", less, empty...)
	addRefusals(b, "blocked", "answers 429 and 503", refused, func(n float64) float64 { return n })
	return nil
}

func (b *bench) blockedRound(ctx context.Context) (quiet, share float64, load loadResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return 0, 0, load, err
	}
	defer st.stop()
	if quiet, err = st.idle(ctx); err != nil {
		return 0, 0, load, err
	}
	n := b.scaled(breakerEndpoints, 10)
	if err := st.openBreakers(ctx, 0, n); err != nil {
		return 0, 0, load, err
	}
	run, err := st.newRun(ctx)
	if err != nil {
		return 0, 0, load, err
	}
	load, err = st.postArrays(ctx, loadSpec{Run: run, Companies: 1, Types: n, Count: int64(b.scaled(behindBreakers, 1000)), For: drainTime})
	if err != nil {
		return 0, 0, load, err
	}
	calm, err := st.awaitCalm(ctx, b.DrainFor)
	if err != nil {
		return 0, 0, load, err
	}
	if share, err = st.idle(ctx); err != nil {
		return 0, 0, load, err
	}
	b.note("blocked: %.1f %% of a core with %d deliveries behind %d breakers, %.1f %% with nothing; queues calm before: %t",
		100*share, load.Accepted, n, 100*quiet, calm)
	return quiet, share, load, nil
}
