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
	besideRate    = 100 // events/s of the fast subscriber
)

// beside is one round of backlogged: X is slow and has a backlog, Y is fast.
// Growing is while X's events come in and are matched, fast is afterwards.
type beside struct {
	quiet, growing, fast noticed
	without, with        window
	refused, pending     int64
}

// limitShare is X's rate, as a share of what its limit and its latency allow.
func (r beside) limitShare() float64 {
	return r.with.rate() / (endpointLimit / slowDelay.Seconds())
}

// redisMore is the CPU of Redis that each delivery of X adds, in µs.
func (r beside) redisMore() float64 {
	quiet := r.without.cpu.redis.Seconds() / r.without.took.Seconds() * r.with.took.Seconds()
	return 1e6 * (r.with.cpu.redis.Seconds() - quiet) / float64(r.with.distinct)
}

// besideBacklog has a fast subscriber beside a slow one of the same company.
func besideBacklog(ctx context.Context, b *bench) error {
	var rounds []beside
	for range b.Rounds {
		r, err := b.besideRound(ctx)
		if err != nil {
			return err
		}
		b.note("backlogged: Y's p99 %.1f ms (quiet %.1f, while X's backlog comes in %.1f), %d lost; X %.0f/s, %.2f of its limit, %d pending, %.1f µs more of redis a delivery; %d answers 429 or 503",
			ms(r.fast.P99), ms(r.quiet.P99), ms(r.growing.P99), r.fast.lost, r.with.rate(), r.limitShare(), r.pending, r.redisMore(), r.refused)
		rounds = append(rounds, r)
	}
	const name = "backlogged"
	addOf(b, name, "Y's p99, of quiet", "", less, rounds, func(r beside) float64 { return float64(r.fast.P99) / float64(r.quiet.P99) }).goal(1.5)
	addOf(b, name, "Y's p99", "ms", less, rounds, func(r beside) float64 { return ms(r.fast.P99) })
	addOf(b, name, "Y's p99 while X's backlog comes in", "ms", less, rounds, func(r beside) float64 { return ms(r.growing.P99) })
	addOf(b, name, "Y's quiet p99", "ms", less, rounds, func(r beside) float64 { return ms(r.quiet.P99) })
	addOf(b, name, "X's rate, of limit ÷ latency", "", more, rounds, beside.limitShare).goal(0.95)
	addOf(b, name, "redis CPU more, a delivery of X", "µs", less, rounds, beside.redisMore).goal(20)
	addOf(b, name, "pending of X", "", "", rounds, func(r beside) float64 { return float64(r.pending) })
	none(b, name, "Y's events lost", rounds, func(r beside) float64 { return float64(r.fast.lost + r.growing.lost + r.quiet.lost) })
	refusals(b, name, "answers 429 and 503", rounds, func(r beside) float64 { return float64(r.refused) })
	return nil
}

func (b *bench) besideRound(ctx context.Context) (r beside, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{other: true})
	if err != nil {
		return r, err
	}
	defer st.stop()
	fast, err := st.newBystander(ctx, []int{0}, besideRate)
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
	if r.quiet, err = fast.watched(ctx, drainTime, look(&r.without)); err != nil {
		return r, err
	}
	if r.growing, err = fast.watched(ctx, drainTime, func(run int64) error { return b.slowBacklog(ctx, st, run, &r) }); err != nil {
		return r, err
	}
	run, err := st.newOtherRun(ctx)
	if err != nil {
		return r, err
	}
	r.fast, err = fast.watchedIn(ctx, run, drainTime, look(&r.with))
	r.refused += r.quiet.refused + r.growing.refused + r.fast.refused
	return r, errors.Join(err, st.stillPending(ctx, &r.pending))
}

// slowBacklog posts what X is to have pending, and returns when all of it is in
// X's endpoint queue. The ids are apart from those of Y.
func (b *bench) slowBacklog(ctx context.Context, st *stack, run int64, r *beside) error {
	load, err := st.pile(ctx, loadSpec{
		Run: run, First: maxEvents / 2, Companies: 1, Types: 1, Count: int64(b.scaled(slowPending, 2000)), For: drainTime,
	})
	r.refused, r.pending = load.Refused, load.Accepted
	return errors.Join(err, await(ctx, drainTime, func() (bool, error) {
		n, err := st.redis.ready(ctx)
		return n < besideRate, err // Y's come all the time
	}))
}

// stillPending subtracts the delivered events from pending. It fails when none is left, since
// the run then measured no backlog.
func (s *stack) stillPending(ctx context.Context, pending *int64) (err error) {
	*pending, err = s.missing(ctx, *pending)
	if err == nil && *pending <= 0 {
		err = fmt.Errorf("the backlog is gone (%d): it was too small", *pending)
	}
	return err
}
