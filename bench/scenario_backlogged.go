package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	slowDelay     = 300 * time.Millisecond
	slowPending   = 200_000
	endpointLimit = 64  // attempts at once to one endpoint, by default
	fastRate      = 100 // events/s of the fast subscriber
)

// backloggedResult is one round of backlogged: X is slow and has a backlog, Y is fast. quiet is Y
// before the backlog, growing is Y while X's events come in and are matched, fast is Y afterwards.
type backloggedResult struct {
	quiet, growing, fast bystanderResult
	without, with        window
	refused, pending     int64
}

// limitShare returns X's rate as a share of what its limit and its latency allow.
func (r backloggedResult) limitShare() float64 {
	return r.with.rate() / (endpointLimit / slowDelay.Seconds())
}

// redisMore returns the CPU time of Redis that each delivery of X adds, in µs.
func (r backloggedResult) redisMore() float64 {
	quiet := r.without.cpu.redis.Seconds() / r.without.took.Seconds() * r.with.took.Seconds()
	return 1e6 * (r.with.cpu.redis.Seconds() - quiet) / float64(r.with.distinct)
}

// backlogged measures a fast subscriber beside a slow one of the same company.
func backlogged(ctx context.Context, b *bench) error {
	var rounds []backloggedResult
	for range b.Rounds {
		r, err := b.backloggedRound(ctx)
		if err != nil {
			return err
		}
		b.note("backlogged: Y's p99 %.1f ms (quiet %.1f, while X's backlog comes in %.1f), %d lost; X %.0f/s, %.2f of its limit, %d pending, %.1f µs more of redis a delivery; %d answers 429 or 503",
			ms(r.fast.P99), ms(r.quiet.P99), ms(r.growing.P99), r.fast.lost, r.with.rate(), r.limitShare(), r.pending, r.redisMore(), r.refused)
		rounds = append(rounds, r)
	}
	const name = "backlogged"
	addOf(b, name, "Y's p99, of quiet", "", less, rounds, func(r backloggedResult) float64 { return float64(r.fast.P99) / float64(r.quiet.P99) }).goal(1.5)
	addOf(b, name, "Y's p99", "ms", less, rounds, func(r backloggedResult) float64 { return ms(r.fast.P99) })
	addOf(b, name, "Y's p99 while X's backlog comes in", "ms", less, rounds, func(r backloggedResult) float64 { return ms(r.growing.P99) })
	addOf(b, name, "Y's quiet p99", "ms", less, rounds, func(r backloggedResult) float64 { return ms(r.quiet.P99) })
	addOf(b, name, "X's rate, of limit ÷ latency", "", more, rounds, backloggedResult.limitShare).goal(0.95)
	addOf(b, name, "redis CPU more, a delivery of X", "µs", less, rounds, backloggedResult.redisMore).goal(20)
	addOf(b, name, "pending of X", "", "", rounds, func(r backloggedResult) float64 { return float64(r.pending) })
	addMustBeZero(b, name, "Y's events lost", rounds, func(r backloggedResult) float64 { return float64(r.fast.lost + r.growing.lost + r.quiet.lost) })
	addRefusals(b, name, "answers 429 and 503", rounds, func(r backloggedResult) float64 { return float64(r.refused) })
	return nil
}

func (b *bench) backloggedRound(ctx context.Context) (r backloggedResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{other: true})
	if err != nil {
		return r, err
	}
	defer st.stop()
	fast, err := st.newBystander(ctx, []int{0}, fastRate)
	if err != nil {
		return r, err
	}
	slow := subscription{name: "slow", url: st.receiver.Endpoints[0], event: numberedType(0)}
	_, err = st.daemons[0].subscribe(ctx, slow)
	if err = errors.Join(err, st.receiver.set(ctx, 1, mode{Delay: slowDelay})); err != nil {
		return r, err
	}
	look := func(w *window) func(int64) error {
		return func(int64) (err error) {
			*w, err = st.watch(ctx, b.PacedFor)
			return err
		}
	}
	if r.quiet, err = fast.sendDuring(ctx, drainTime, look(&r.without)); err != nil {
		return r, err
	}
	if r.growing, err = fast.sendDuring(ctx, drainTime, func(run int64) error { return b.slowBacklog(ctx, st, run, &r) }); err != nil {
		return r, err
	}
	run, err := st.newOtherRun(ctx)
	if err != nil {
		return r, err
	}
	r.fast, err = fast.sendDuringRun(ctx, run, drainTime, look(&r.with))
	r.refused += r.quiet.refused + r.growing.refused + r.fast.refused
	return r, errors.Join(err, st.stillPending(ctx, &r.pending))
}

// slowBacklog posts X's backlog and returns when all of it is in X's retry set. Its ids
// differ from those of Y's events.
func (b *bench) slowBacklog(ctx context.Context, st *stack, run int64, r *backloggedResult) error {
	load, err := st.postArrays(ctx, loadSpec{
		Run: run, First: maxEvents / 2, Companies: 1, Types: 1, Count: int64(b.scaled(slowPending, 2000)), For: drainTime,
	})
	r.refused, r.pending = load.Refused, load.Accepted
	return errors.Join(err, await(ctx, drainTime, func() (bool, error) {
		n, err := st.redis.ready(ctx)
		return n < fastRate, err // Y's events keep coming in
	}))
}

// stillPending subtracts the delivered events from pending. It returns an error when none is
// left, because the run then did not measure a backlog.
func (s *stack) stillPending(ctx context.Context, pending *int64) (err error) {
	*pending, err = s.missing(ctx, *pending)
	if err == nil && *pending <= 0 {
		err = fmt.Errorf("the backlog is gone (%d): it was too small", *pending)
	}
	return err
}
