package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// illness is a fault of the first subscribers of a company.
type illness struct {
	name    string
	sick    int
	mode    mode
	refuses bool // their ports have no listener
}

// ward is a company with many subscribers, some of which are faulty.
type ward struct {
	name        string
	subscribers int
	rate        float64 // events/s to all of them
	cases       []illness
}

func isolation10(ctx context.Context, b *bench) error {
	return ward{"isolation", 10, 100, []illness{
		{name: "one hangs", sick: 1, mode: mode{Hang: true}},
		{name: "three hang", sick: 3, mode: mode{Hang: true}},
		{name: "one answers in 5 s", sick: 1, mode: mode{Delay: 5 * time.Second}},
		{name: "one refuses connections", sick: 1, refuses: true},
	}}.run(ctx, b)
}

// isolation200 makes as many deliveries a second as isolation10 does.
func isolation200(ctx context.Context, b *bench) error {
	return ward{"isolation200", 200, 5, []illness{
		{name: "50 hang", sick: 50, mode: mode{Hang: true}},
	}}.run(ctx, b)
}

// run takes, in every round, the healthy subscribers' p99 in a quiet ward and
// in each case.
func (w ward) run(ctx context.Context, b *bench) error {
	ratios := make([][]float64, len(w.cases))
	var quiet []float64
	for range b.Rounds {
		still, err := w.p99(ctx, b, illness{name: "quiet"})
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

// p99 is the latency of the healthy, in ms, in one case on a stack of its own.
func (w ward) p99(ctx context.Context, b *bench, c illness) (float64, error) {
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
	if err = errors.Join(err, st.receiver.set(ctx, c.sick, c.mode)); err != nil {
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
	t, err := w.account(ctx, st, ids, c.sick, load.Accepted)
	b.note("%s, %s: p50 %.1f ms, p99 %.1f ms of the healthy", w.name, c.name, ms(t.P50), ms(t.P99))
	return ms(t.P99), err
}

// everyAttempt is longer than any delivery stays without a record.
const everyAttempt = 30 * time.Second

// account waits until the healthy subscribers have received every event, and until each faulty
// subscriber has a delivery of every event, in any status.
func (w ward) account(ctx context.Context, st *stack, ids []string, sick int, accepted int64) (t tally, err error) {
	expected := accepted * int64(w.subscribers-sick)
	err = await(ctx, everyAttempt, func() (bool, error) {
		var err error
		t, err = st.receiver.latency(ctx, sick, w.subscribers, 0)
		return t.Distinct >= expected, err
	})
	if err != nil {
		return t, fmt.Errorf("the healthy have %d of %d: %w", t.Distinct, expected, err)
	}
	for _, id := range ids[:sick] {
		var kept int64
		err := await(ctx, everyAttempt, func() (done bool, err error) {
			kept, err = st.daemons[0].kept(ctx, company(0), id)
			return kept == accepted, err
		})
		if err != nil {
			return t, fmt.Errorf("a sick subscriber has %d of %d deliveries: %w", kept, accepted, err)
		}
	}
	return t, nil
}

// deadAddress returns an address on loopback without a listener.
func deadAddress(ctx context.Context) (string, error) {
	port, err := freePort(ctx)
	return "http://127.0.0.1:" + port + "/hook", err
}
