package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	clusterMasters   = 3
	clusterCompanies = 1000
	clusterRate      = 200             // events/s of the companies whose masters keep running
	stoppedRate      = 50              // events/s of the companies whose master is stopped
	beforeStop       = 2 * time.Second // of load
	neverSent        = "BENCH_NONE"    // of events that are never sent
)

// clusterResult is one round of cluster.
type clusterResult struct {
	busiest       float64 // commands of the busiest master, divided by the mean
	quiet, others bystanderResult
	stopped       loadResult
	load          loadResult
	left          int64 // events of the stopped master's companies that were never received
}

// cluster spreads companies over three masters, and stops one of them.
func cluster(ctx context.Context, b *bench) error {
	var rounds []clusterResult
	for range b.Rounds {
		r, err := b.clusterRound(ctx)
		if err != nil {
			return err
		}
		b.note("cluster: the busiest master has %.2f of the mean; one stopped: the others' p99 %.1f, max %.1f ms (quiet %.1f), %d lost, %d answers 429 or 503; its own: %d such answers, %d events missing",
			r.busiest, ms(r.others.P99), ms(r.others.Max), ms(r.quiet.P99), r.others.lost, r.others.refused, r.stopped.Refused, r.left)
		rounds = append(rounds, r)
	}
	const name = "cluster"
	addOf(b, name, "commands of the busiest master, of the mean", "", less, rounds, func(r clusterResult) float64 { return r.busiest }).goal(1.3)
	addOf(b, name, "one stopped: the others' p99", "ms", less, rounds, func(r clusterResult) float64 { return ms(r.others.P99) }).goal(100)
	addOf(b, name, "one stopped: the others' max", "ms", less, rounds, func(r clusterResult) float64 { return ms(r.others.Max) })
	addOf(b, name, "quiet p99", "ms", less, rounds, func(r clusterResult) float64 { return ms(r.quiet.P99) })
	addRefusals(b, name, "one stopped: the others' answers 429 and 503", rounds, func(r clusterResult) float64 { return float64(r.others.refused) })
	addOf(b, name, "one stopped: its own answers 429 and 503", "", "", rounds, func(r clusterResult) float64 { return float64(r.stopped.Refused) })
	addMustBeZero(b, name, "events lost", rounds, func(r clusterResult) float64 { return float64(r.others.lost + r.quiet.lost + r.stopped.Lost + r.left) })
	addRefusals(b, name, "answers 429 and 503 with all masters", rounds, func(r clusterResult) float64 { return float64(r.quiet.refused + r.load.Refused) })
	return nil
}

func (b *bench) clusterRound(ctx context.Context) (r clusterResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{masters: clusterMasters, other: true})
	if err != nil {
		return r, err
	}
	defer st.stop()
	victim := st.masters[clusterMasters-1]
	of, spared, err := st.placeCompanies(ctx, b.scaled(clusterCompanies, 30), victim)
	if err != nil {
		return r, err
	}
	others, err := st.newBystander(ctx, spared, clusterRate)
	if err != nil {
		return r, err
	}
	if _, err = st.daemons[0].subscribeAll(ctx, st.receiver.subscriptions(of, 1)); err != nil {
		return r, err
	}
	if err := b.spread(ctx, st, slices.Concat(of, spared), &r); err != nil {
		return r, err
	}
	if r.quiet, err = others.alone(ctx, b.PacedFor/2); err != nil {
		return r, err
	}
	r.others, err = others.sendDuring(ctx, drainTime, func(run int64) error { return b.stopMaster(ctx, st, victim, of, run, &r) })
	return r, err
}

// placeCompanies divides companies into those with keys on a master, and the others. A
// subscriber of an event type that is never sent creates the keys, whose names contain the
// company's uuid.
func (s *stack) placeCompanies(ctx context.Context, n int, on *redisServer) (of, spared []int, err error) {
	list := s.receiver.subscriptions(firstOf(n), 1)
	for i := range list {
		list[i].name, list[i].event, list[i].url = "placed", neverSent, list[i].url+"/placed"
	}
	if _, err := s.daemons[0].subscribeAll(ctx, list); err != nil {
		return nil, nil, err
	}
	keys, err := on.ask(ctx, "--scan", "--pattern", "*"+companyPrefix+"*")
	if err != nil {
		return nil, nil, err
	}
	here := companiesIn(keys)
	for c := range n {
		if here[c] {
			of = append(of, c)
		} else {
			spared = append(spared, c)
		}
	}
	if len(of) == 0 || len(spared) == 0 {
		err = fmt.Errorf("%d companies on the master, %d on others", len(of), len(spared))
	}
	return of, spared, err
}

// companiesIn returns the companies whose UUIDs are in a text.
func companiesIn(text string) map[int]bool {
	found := map[int]bool{}
	for {
		_, rest, ok := strings.Cut(text, companyPrefix)
		if !ok {
			return found
		}
		var n int
		if _, err := fmt.Sscanf(rest[:min(len(rest), companyDigits)], "%d", &n); err == nil {
			found[n] = true
		}
		text = rest
	}
}

// spread puts load on all companies and counts the masters' commands until
// everything is delivered.
func (b *bench) spread(ctx context.Context, st *stack, all []int, r *clusterResult) error {
	before, err := st.commands(ctx)
	if err != nil {
		return err
	}
	run, err := st.newRun(ctx)
	if err != nil {
		return err
	}
	r.load, _, err = generate(ctx, loadSpec{
		Targets: st.targets(), Clients: bareClients, Run: run, Of: all, Batch: 1, Count: maxAhead, For: b.LoadFor,
	})
	if err != nil {
		return err
	}
	err = await(ctx, drainTime, func() (bool, error) {
		own, err := st.receiver.tally(ctx)
		others, err2 := st.other.tally(ctx)
		return own.Distinct+others.Distinct >= r.load.Accepted, errors.Join(err, err2)
	})
	if err != nil {
		return fmt.Errorf("spread over the masters: %w", err)
	}
	after, err := st.commands(ctx)
	r.busiest = busiestShare(before, after)
	return err
}

// commands returns how many commands each master has processed, including those of scripts.
func (s *stack) commands(ctx context.Context) (list []int64, err error) {
	for _, m := range s.masters {
		n, e := m.info(ctx, "stats", "total_commands_processed")
		list, err = append(list, n), errors.Join(err, e)
	}
	return list, err
}

// busiestShare returns the largest increase divided by the mean increase.
func busiestShare(before, after []int64) float64 {
	var most, sum int64
	for i := range after {
		grown := after[i] - before[i]
		most, sum = max(most, grown), sum+grown
	}
	return float64(most) * float64(len(after)) / float64(sum)
}

// stopMaster stops a master for StopFor while all companies send.
func (b *bench) stopMaster(ctx context.Context, st *stack, victim *redisServer, of []int, run int64, r *clusterResult) error {
	own, err := startLoad(loadSpec{
		Targets: st.targets(), Clients: bareClients, Run: run, Of: of, Batch: 1, Rate: stoppedRate, Count: maxEvents, For: drainTime,
	})
	if err != nil {
		return err
	}
	err = errors.Join(pause(ctx, beforeStop), victim.Signal(syscall.SIGSTOP), pause(ctx, b.StopFor),
		victim.Signal(syscall.SIGCONT), pause(ctx, beforeStop))
	if err != nil {
		own.Kill()
		return err
	}
	if r.stopped, err = own.stop(ctx); err != nil {
		return err
	}
	r.left, err = st.awaitDelivered(ctx, r.stopped.Accepted, everyAttempt+b.DrainFor)
	return err
}
