package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// fault is what the first subscribers of a company do wrong.
type fault struct {
	name    string
	faulty  int
	mode    mode
	refuses bool // their ports have no listener
}

// faultyCompany is a company with many subscribers, the first of which have a fault.
type faultyCompany struct {
	name        string
	subscribers int
	rate        float64 // events/s to all of them
	cases       []fault
}

func isolation10(ctx context.Context, b *bench) error {
	return faultyCompany{"isolation", 10, 100, []fault{
		{name: "one hangs", faulty: 1, mode: mode{Hang: true}},
		{name: "three hang", faulty: 3, mode: mode{Hang: true}},
		{name: "one answers in 5 s", faulty: 1, mode: mode{Delay: 5 * time.Second}},
		{name: "one refuses connections", faulty: 1, refuses: true},
	}}.run(ctx, b)
}

// isolation200 makes as many deliveries a second as isolation10 does.
func isolation200(ctx context.Context, b *bench) error {
	return faultyCompany{"isolation200", 200, 5, []fault{
		{name: "50 hang", faulty: 50, mode: mode{Hang: true}},
	}}.run(ctx, b)
}

// run measures, in every round, the p99 of the healthy subscribers without a fault and with each
// fault.
func (w faultyCompany) run(ctx context.Context, b *bench) error {
	ratios := make([][]float64, len(w.cases))
	var quiet []float64
	for range b.Rounds {
		still, err := w.p99(ctx, b, fault{name: "quiet"})
		if err != nil {
			return err
		}
		quiet = append(quiet, still)
		for i, c := range w.cases {
			p99, err := w.p99(ctx, b, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			ratios[i] = append(ratios[i], p99/still)
		}
	}
	b.add(w.name, "quiet, p99", "ms", less, quiet...)
	for i, c := range w.cases {
		b.add(w.name, c.name+": healthy p99, of quiet", "", less, ratios[i]...).goal(1.5)
	}
	return nil
}

// p99 returns the latency of the healthy subscribers, in ms, with one fault, on a new stack.
func (w faultyCompany) p99(ctx context.Context, b *bench, c fault) (float64, error) {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return 0, err
	}
	defer st.stop()
	if c.refuses {
		if st.receiver.Endpoints[0], err = deadAddress(ctx); err != nil {
			return 0, err
		}
	}
	ids, err := st.subscribe(ctx, 1, w.subscribers)
	if err = errors.Join(err, st.receiver.set(ctx, c.faulty, c.mode)); err != nil {
		return 0, err
	}
	run, err := st.newRun(ctx)
	if err != nil {
		return 0, err
	}
	load, _, err := generate(ctx, loadSpec{
		Targets: st.targets(), Clients: bareClients, Run: run, Companies: 1, Batch: 1,
		Rate: w.rate, Count: maxAhead, For: b.PacedFor,
	})
	if err = errors.Join(err, load.clean()); err != nil {
		return 0, err
	}
	t, err := w.awaitAll(ctx, st, ids, c.faulty, load.Accepted)
	b.note("%s, %s: p50 %.1f ms, p99 %.1f ms of the healthy subscribers", w.name, c.name, ms(t.P50), ms(t.P99))
	return ms(t.P99), err
}

// everyAttempt is longer than the first attempt of a delivery takes until it is recorded.
const everyAttempt = 30 * time.Second

// awaitAll waits until the healthy subscribers have received every event, and until each faulty
// subscriber has a delivery of every event, in any status.
func (w faultyCompany) awaitAll(ctx context.Context, st *stack, ids []string, faulty int, accepted int64) (t tally, err error) {
	expected := accepted * int64(w.subscribers-faulty)
	err = await(ctx, everyAttempt, func() (bool, error) {
		var err error
		t, err = st.receiver.latency(ctx, faulty, w.subscribers, 0)
		return t.Distinct >= expected, err
	})
	if err != nil {
		return t, fmt.Errorf("the healthy subscribers received %d of %d events: %w", t.Distinct, expected, err)
	}
	for _, id := range ids[:faulty] {
		var kept int64
		err := await(ctx, everyAttempt, func() (done bool, err error) {
			kept, err = st.daemons[0].deliveriesOf(ctx, company(0), id)
			return kept == accepted, err
		})
		if err != nil {
			return t, fmt.Errorf("a faulty subscriber has %d of %d deliveries: %w", kept, accepted, err)
		}
	}
	return t, nil
}

// deadAddress returns an address on loopback without a listener.
func deadAddress(ctx context.Context) (string, error) {
	port, err := freePort(ctx)
	return "http://127.0.0.1:" + port + "/hook", err
}
