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
	lostDelay     = 250 * time.Millisecond // of the receivers, so that their in-flight limits determine the rate
	flowAgain     = 2 * time.Second        // the longest time until all companies have deliveries again
)

// lostQueueResult is one round of lostqueue. A gap is the longest time in which a company had no
// delivery.
type lostQueueResult struct {
	before, after       window
	gapBefore, gapAfter time.Duration
	pending, refused    int64
}

// lostqueue deletes all keys of asynq during a backlog.
func lostqueue(ctx context.Context, b *bench) error {
	var rounds []lostQueueResult
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
	addOf(b, name, "until all flow again", "s", less, rounds, func(r lostQueueResult) float64 { return r.gapAfter.Seconds() }).goal(flowAgain.Seconds())
	addOf(b, name, "longest gap of a company before", "s", less, rounds, func(r lostQueueResult) float64 { return r.gapBefore.Seconds() })
	addOf(b, name, "rate after, of before", "", more, rounds, func(r lostQueueResult) float64 { return r.after.rate() / r.before.rate() }).goal(0.95)
	addOf(b, name, rateName+" before", "1/s", more, rounds, func(r lostQueueResult) float64 { return r.before.rate() })
	addOf(b, name, rateName+" after", "1/s", more, rounds, func(r lostQueueResult) float64 { return r.after.rate() })
	addOf(b, name, "pending at the end", "", "", rounds, func(r lostQueueResult) float64 { return float64(r.pending) })
	addRefusals(b, name, "answers 429 and 503", rounds, func(r lostQueueResult) float64 { return float64(r.refused) })
	return nil
}

func (b *bench) lostRound(ctx context.Context) (r lostQueueResult, err error) {
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
	load, err := st.postArrays(ctx, loadSpec{Run: run, Companies: lostCompanies, Count: int64(b.scaled(lostPending, 20_000)), For: drainTime})
	if err != nil {
		return r, err
	}
	r.pending, r.refused = load.Accepted, load.Refused
	if err := b.measureLoss(ctx, st, &r); err != nil {
		return r, err
	}
	return r, st.stillPending(ctx, &r.pending)
}

// measureLoss measures the rate, deletes the queues, and measures the rate again after flowAgain.
func (b *bench) measureLoss(ctx context.Context, st *stack, r *lostQueueResult) (err error) {
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

// longestGap returns the longest time since the mark in which one of the first n endpoints
// received nothing.
func (s *stack) longestGap(ctx context.Context, n int) (time.Duration, error) {
	t, err := s.receiver.askTally(ctx, fmt.Sprintf("/tally/0/%d", n))
	return time.Duration(t.Gap) * time.Microsecond, err
}
