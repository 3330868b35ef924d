package main

import (
	"context"
	"errors"
	"time"
)

const (
	crowdCompanies = 1000 // each sends an event a second
	crowdBusy      = 10   // of them have a backlog
	crowdBacklog   = 20_000
	crowdDelay     = 50 * time.Millisecond // of the receivers of these
)

// crowd is one round of tenants1000.
type crowd struct {
	quiet, others noticed
	flood         loadResult
	left          int64
	watched       time.Duration
}

// tenants1000 has few of many companies post a backlog.
func tenants1000(ctx context.Context, b *bench) error {
	var rounds []crowd
	for range b.Rounds {
		r, err := b.crowdRound(ctx)
		if err != nil {
			return err
		}
		b.note("tenants1000: the others' p50 %.1f, p99 %.1f ms (quiet %.1f, %.1f), %d lost, %d answers 429 or 503; %d left after %.1f s",
			ms(r.others.P50), ms(r.others.P99), ms(r.quiet.P50), ms(r.quiet.P99), r.others.lost, r.refused(), r.left, r.watched.Seconds())
		rounds = append(rounds, r)
	}
	const name = "tenants1000"
	addOf(b, name, "the others' p99", "ms", less, rounds, func(r crowd) float64 { return ms(r.others.P99) }).goal(50)
	addOf(b, name, "the others' p50", "ms", less, rounds, func(r crowd) float64 { return ms(r.others.P50) })
	addOf(b, name, "quiet p99", "ms", less, rounds, func(r crowd) float64 { return ms(r.quiet.P99) })
	none(b, name, "the others' events lost", rounds, func(r crowd) float64 { return float64(r.others.lost + r.quiet.lost) })
	refusals(b, name, "answers 429 and 503", rounds, func(r crowd) float64 { return float64(r.refused()) })
	addOf(b, name, "left when the watch ended", "", "", rounds, func(r crowd) float64 { return float64(r.left) })
	addOf(b, name, "watched", "s", "", rounds, func(r crowd) float64 { return r.watched.Seconds() })
	return nil
}

func (r crowd) refused() int64 { return r.flood.Refused + r.others.refused + r.quiet.refused }

func (b *bench) crowdRound(ctx context.Context) (r crowd, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{other: true})
	if err != nil {
		return r, err
	}
	defer st.stop()
	calm := between(crowdBusy, b.scaled(crowdCompanies, 2*crowdBusy))
	others, err := st.newBystander(ctx, calm, float64(len(calm)))
	if err != nil {
		return r, err
	}
	_, err = st.subscribe(ctx, crowdBusy, 1)
	if err = errors.Join(err, st.receiver.set(ctx, crowdBusy, mode{Delay: crowdDelay})); err != nil {
		return r, err
	}
	if r.quiet, err = others.alone(ctx, b.PacedFor/2); err != nil {
		return r, err
	}
	r.others, err = others.watched(ctx, drainTime, func(run int64) error { return b.crowdFlood(ctx, st, run, &r) })
	return r, err
}

// crowdFlood posts the backlog of the busy companies, which go on with an event
// a second each, and watches until it is delivered, or for DrainFor.
func (b *bench) crowdFlood(ctx context.Context, st *stack, run int64, r *crowd) error {
	start := time.Now()
	steady, err := startLoad(loadSpec{
		Targets: st.targets(), Clients: crowdBusy, Run: uncounted, Companies: crowdBusy, Batch: 1,
		Rate: crowdBusy, Count: maxEvents, For: drainTime,
	})
	if err != nil {
		return err
	}
	backlog := int64(crowdBusy * b.scaled(crowdBacklog, pileBatch))
	r.flood, err = st.pile(ctx, loadSpec{Run: run, Companies: crowdBusy, Count: backlog, For: drainTime})
	if err == nil {
		r.left, err = st.awaitDelivered(ctx, r.flood.Accepted, b.DrainFor)
	}
	r.watched = time.Since(start)
	if err != nil {
		steady.Kill()
		return err
	}
	more, err := steady.stop(ctx)
	r.flood.Refused += more.Refused
	return err
}
