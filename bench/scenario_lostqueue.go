package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	lostPending   = 1_000_000
	lostCompanies = 16
	lostDelay     = 250 * time.Millisecond // of their receivers, whose limits so decide the rate
	flowAgain     = 2 * time.Second        // is how soon it must flow again
)

// lost is one round of lostqueue. A gap is the longest time without a delivery
// of any company.
type lost struct {
	before, after       window
	gapBefore, gapAfter time.Duration
	pending, refused    int64
}

// lostqueue deletes everything of asynq while much is pending.
func lostqueue(ctx context.Context, b *bench) error {
	var rounds []lost
	for range b.Rounds {
		r, err := b.lostRound(ctx)
		if err != nil {
			return err
		}
		b.note("lostqueue: %.0f deliveries/s, %.0f after; all flow again within %.2f s (longest gap before: %.2f s); %d pending at the end",
			r.before.rate(), r.after.rate(), r.gapAfter.Seconds(), r.gapBefore.Seconds(), r.pending)
		rounds = append(rounds, r)
	}
	const name = "lostqueue"
	addOf(b, name, "until all flow again", "s", less, rounds, func(r lost) float64 { return r.gapAfter.Seconds() }).goal(flowAgain.Seconds())
	addOf(b, name, "longest gap of a company before", "s", less, rounds, func(r lost) float64 { return r.gapBefore.Seconds() })
	addOf(b, name, "rate after, of before", "", more, rounds, func(r lost) float64 { return r.after.rate() / r.before.rate() }).goal(0.95)
	addOf(b, name, rateName+" before", "1/s", more, rounds, func(r lost) float64 { return r.before.rate() })
	addOf(b, name, rateName+" after", "1/s", more, rounds, func(r lost) float64 { return r.after.rate() })
	addOf(b, name, "pending at the end", "", "", rounds, func(r lost) float64 { return float64(r.pending) })
	refusals(b, name, "answers 429 and 503", rounds, func(r lost) float64 { return float64(r.refused) })
	return nil
}

func (b *bench) lostRound(ctx context.Context) (r lost, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return r, err
	}
	defer st.stop()
	_, err = st.subscribe(ctx, lostCompanies, 1)
	if err = errors.Join(err, st.receiver.set(ctx, lostCompanies, mode{Delay: lostDelay})); err != nil {
		return r, err
	}
	run, err := st.newRun(ctx)
	if err != nil {
		return r, err
	}
	load, err := st.pile(ctx, loadSpec{Run: run, Companies: lostCompanies, Count: int64(b.scaled(lostPending, 20_000)), For: drainTime})
	if err != nil {
		return r, err
	}
	r.pending, r.refused = load.Accepted, load.Refused
	if err := b.lose(ctx, st, &r); err != nil {
		return r, err
	}
	return r, st.stillPending(ctx, &r.pending)
}

// lose takes the rate, deletes the queues, and takes it again when it must be
// as before.
func (b *bench) lose(ctx context.Context, st *stack, r *lost) (err error) {
	length := b.PacedFor / 4
	if err := errors.Join(pause(ctx, length), st.receiver.mark(ctx)); err != nil {
		return err
	}
	if r.before, err = st.watch(ctx, length); err != nil {
		return err
	}
	if r.gapBefore, err = st.longestGap(ctx, lostCompanies); err != nil {
		return err
	}
	if err := errors.Join(st.redis.loseQueues(ctx), st.receiver.mark(ctx), pause(ctx, flowAgain)); err != nil {
		return err
	}
	if r.after, err = st.watch(ctx, length); err != nil {
		return err
	}
	r.gapAfter, err = st.longestGap(ctx, lostCompanies)
	return err
}

// longestGap is the longest time since the mark in which one of the first n
// endpoints received nothing.
func (s *stack) longestGap(ctx context.Context, n int) (time.Duration, error) {
	t, err := s.receiver.askTally(ctx, fmt.Sprintf("/tally/0/%d", n))
	return time.Duration(t.Gap) * time.Microsecond, err
}
