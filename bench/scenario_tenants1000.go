package main

import (
	"context"
	"errors"
	"time"
)

const (
	crowdCompanies = 1000                  // each sends an event a second
	crowdBusy      = 10                    // companies that have a backlog
	crowdBacklog   = 20_000                // events of each of these
	crowdDelay     = 50 * time.Millisecond // of the receivers of these
)

// tenants1000Result is one round of tenants1000.
type tenants1000Result struct {
	quiet, others bystanderResult
	flood         loadResult
	left          int64
	watched       time.Duration
}

// tenants1000 measures many companies while a few of them post a backlog.
func tenants1000(ctx context.Context, b *bench) error {
	var rounds []tenants1000Result
	for range b.Rounds {
		r, err := b.tenants1000Round(ctx)
		if err != nil {
			return err
		}
		b.note("tenants1000: the others' p50 %.1f, p99 %.1f ms (quiet %.1f, %.1f), %d lost, %d answers 429 or 503; %d left after %.1f s",
			ms(r.others.P50), ms(r.others.P99), ms(r.quiet.P50), ms(r.quiet.P99), r.others.lost, r.refused(), r.left, r.watched.Seconds())
		rounds = append(rounds, r)
	}
	const name = "tenants1000"
	addOf(b, name, "the others' p99", "ms", less, rounds, func(r tenants1000Result) float64 { return ms(r.others.P99) }).goal(50)
	addOf(b, name, "the others' p50", "ms", less, rounds, func(r tenants1000Result) float64 { return ms(r.others.P50) })
	addOf(b, name, "quiet p99", "ms", less, rounds, func(r tenants1000Result) float64 { return ms(r.quiet.P99) })
	addMustBeZero(b, name, "the others' events lost", rounds, func(r tenants1000Result) float64 { return float64(r.others.lost + r.quiet.lost) })
	addRefusals(b, name, "answers 429 and 503", rounds, func(r tenants1000Result) float64 { return float64(r.refused()) })
	addOf(b, name, "left when the watch ended", "", "", rounds, func(r tenants1000Result) float64 { return float64(r.left) })
	addOf(b, name, "watched", "s", "", rounds, func(r tenants1000Result) float64 { return r.watched.Seconds() })
	return nil
}

func (r tenants1000Result) refused() int64 {
	return r.flood.Refused + r.others.refused + r.quiet.refused
}

func (b *bench) tenants1000Round(ctx context.Context) (r tenants1000Result, err error) {
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
	r.others, err = others.sendDuring(ctx, drainTime, func(run int64) error { return b.crowdFlood(ctx, st, run, &r) })
	return r, err
}

// crowdFlood posts the backlog of the busy companies, which also send an event a second each, and
// waits until the backlog is delivered, for DrainFor at most.
func (b *bench) crowdFlood(ctx context.Context, st *stack, run int64, r *tenants1000Result) error {
	start := time.Now()
	steady, err := startLoad(loadSpec{
		Targets: st.targets(), Clients: crowdBusy, Run: uncounted, Companies: crowdBusy, Batch: 1,
		Rate: crowdBusy, Count: maxEvents, For: drainTime,
	})
	if err != nil {
		return err
	}
	backlog := int64(crowdBusy * b.scaled(crowdBacklog, arraySize))
	r.flood, err = st.postArrays(ctx, loadSpec{Run: run, Companies: crowdBusy, Count: backlog, For: drainTime})
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
