package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

const (
	rolloutReplicas  = 4
	rolloutCompanies = 64
	rolloutPause     = time.Second      // between two restarts
	rolloutStop      = 30 * time.Second // a replica that has not stopped by then is killed
	rolloutAround    = 2 * time.Second  // of load before the first restart, and after the last one
)

// rolloutResult is one round of rollout. The gap is the longest time in which a company had no delivery.
type rolloutResult struct {
	gap, quiet time.Duration
	repeats    int64
	refused    int64
	rate       float64
}

// rollout restarts four replicas in turn, at half of full load.
func rollout(ctx context.Context, b *bench) error {
	var rounds []rolloutResult
	for range b.Rounds {
		r, err := b.rolloutRound(ctx)
		if err != nil {
			return err
		}
		b.note("rollout: %.0f events/s, longest gap %.0f ms (quiet %.0f), %d repeats, %d answers 429 or 503",
			r.rate, 1000*r.gap.Seconds(), 1000*r.quiet.Seconds(), r.repeats, r.refused)
		rounds = append(rounds, r)
	}
	const name = "rollout"
	addOf(b, name, "longest gap of a company", "ms", less, rounds, func(r rolloutResult) float64 { return 1000 * r.gap.Seconds() }).goal(300)
	addOf(b, name, "longest gap without restarts", "ms", less, rounds, func(r rolloutResult) float64 { return 1000 * r.quiet.Seconds() })
	addMustBeZero(b, name, "repeated deliveries", rounds, func(r rolloutResult) float64 { return float64(r.repeats) })
	addRefusals(b, name, "answers 429 and 503", rounds, func(r rolloutResult) float64 { return float64(r.refused) })
	addOf(b, name, "events", "1/s", "", rounds, func(r rolloutResult) float64 { return r.rate })
	return nil
}

func (b *bench) rolloutRound(ctx context.Context) (r rolloutResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{replicas: rolloutReplicas})
	if err != nil {
		return r, err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, rolloutCompanies, 1); err != nil {
		return r, err
	}
	full, err := st.sustain(ctx, loadSpec{Companies: rolloutCompanies, Batch: 1, Count: maxAhead, For: b.LoadFor}, 1)
	if err != nil {
		return r, err
	}
	r.rate = full.rate() / 2
	run, err := st.newRun(ctx)
	if err != nil {
		return r, err
	}
	running, err := startLoad(loadSpec{
		Targets: st.targets(), Clients: bareClients, Run: run, Companies: rolloutCompanies, Batch: 1, Rate: r.rate, Count: maxEvents, For: drainTime,
	})
	if err != nil {
		return r, err
	}
	restarted := b.restartAll(ctx, st, &r)
	load, err := running.stop(ctx)
	if err = errors.Join(restarted, err); err != nil {
		return r, err
	}
	if load.Lost > 0 {
		return r, fmt.Errorf("%d events were never answered: %s", load.Lost, load.Trouble)
	}
	r.refused = load.Refused
	if err := errors.Join(st.awaitDistinct(ctx, load.Accepted), st.awaitSettled(ctx, settleTime)); err != nil {
		return r, err
	}
	t, err := st.receiver.tally(ctx)
	r.repeats = t.Repeats
	return r, err
}

// restartAll restarts each replica, under load.
func (b *bench) restartAll(ctx context.Context, st *stack, r *rolloutResult) error {
	err := errors.Join(pause(ctx, rolloutAround), st.receiver.mark(ctx), pause(ctx, rolloutAround))
	if err != nil {
		return err
	}
	if r.quiet, err = st.longestGap(ctx, rolloutCompanies); err != nil {
		return err
	}
	if err := st.receiver.mark(ctx); err != nil {
		return err
	}
	for i, d := range st.daemons {
		if d.Stop(syscall.SIGTERM, rolloutStop) {
			return fmt.Errorf("replica %d did not stop: %s", i, d.logTail())
		}
		if st.daemons[i], err = d.restart(ctx); err != nil {
			return err
		}
		if err := pause(ctx, rolloutPause); err != nil {
			return err
		}
	}
	if err := pause(ctx, rolloutAround); err != nil {
		return err
	}
	r.gap, err = st.longestGap(ctx, rolloutCompanies)
	return err
}
