package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// floodKind describes a company that floods, and its receivers.
type floodKind struct {
	name     string
	fanOut   int
	mode     mode
	delivery string // settings of the delivery section
	breakers bool   // the breakers of its endpoints are open
}

// floodKinds returns the floods in the order in which they run.
func floodKinds() []floodKind {
	return []floodKind{
		{name: "fast", fanOut: 1},
		{name: "slow50", fanOut: 1, mode: mode{Delay: 50 * time.Millisecond}},
		{name: "fanout10", fanOut: 10},
		{name: "failing", fanOut: 1, mode: mode{Fail: 1}, delivery: everySecond()},
		{name: "hanging", fanOut: 1, mode: mode{Hang: true}},
		{name: "openbreakers", fanOut: 1, breakers: true},
	}
}

func floodNames() string {
	var names []string
	for _, t := range floodKinds() {
		names = append(names, t.name)
	}
	return strings.Join(names, ", ")
}

// tenants measures a company that sends 10 events/s while another one floods.
func tenants(ctx context.Context, b *bench) error {
	for _, t := range floodKinds() {
		if len(b.Shapes) > 0 && !slices.Contains(b.Shapes, t.name) {
			continue
		}
		var rounds []floodResult
		for range b.Rounds {
			r, err := t.round(ctx, b)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			b.note("tenants, %s: the other's p50 %.1f, p99 %.1f, max %.1f ms (quiet %.1f, %.1f), %d lost; %.0f events/s, cores %.0f %% busy; %d pending, %d left after %.1f s; %d answers 429 or 503 %s",
				t.name, ms(r.other.P50), ms(r.other.P99), ms(r.other.Max), ms(r.quiet.P50), ms(r.quiet.P99), r.other.lost,
				r.rate, 100*r.busy, r.pending, r.left, r.drained.Seconds(), r.refused(), r.flood.Trouble)
			rounds = append(rounds, r)
		}
		t.report(b, rounds)
	}
	return nil
}

// floodResult is one flood.
type floodResult struct {
	quiet, other bystanderResult
	flood        loadResult
	rate         float64 // events/s accepted of the flood
	busy         float64 // share of the cores that was busy during the flood
	pending      int64   // deliveries that were open when the flood ended
	left         int64   // deliveries that were still open after drained
	drained      time.Duration
}

func (r floodResult) refused() int64 { return r.flood.Refused + r.other.refused + r.quiet.refused }

const (
	floodingCompany  = 0
	otherCompany     = 1
	otherCompanyRate = 10 // events/s
	busyCores        = 0.95
)

func (t floodKind) round(ctx context.Context, b *bench) (r floodResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{delivery: t.delivery, other: true})
	if err != nil {
		return r, err
	}
	defer st.stop()
	other, err := st.newBystander(ctx, []int{otherCompany}, otherCompanyRate)
	if err = errors.Join(err, t.prepare(ctx, b, st)); err != nil {
		return r, err
	}
	if r.quiet, err = other.alone(ctx, b.PacedFor/2); err != nil {
		return r, err
	}
	r.other, err = other.sendDuring(ctx, drainTime, func(run int64) error { return t.flood(ctx, b, st, run, &r) })
	return r, err
}

// prepare subscribes the company that will flood.
func (t floodKind) prepare(ctx context.Context, b *bench, st *stack) error {
	if t.breakers {
		return st.openBreakers(ctx, floodingCompany, b.scaled(breakerEndpoints, 10))
	}
	_, err := st.subscribe(ctx, 1, t.fanOut)
	return errors.Join(err, st.receiver.set(ctx, t.fanOut, t.mode))
}

// load returns the load of the company. With open breakers it ends after a fixed number of events,
// else after FloodFor.
func (t floodKind) load(b *bench, run int64) loadSpec {
	spec := loadSpec{Run: run, Companies: 1, Count: maxEvents, For: b.FloodFor}
	if t.breakers {
		spec.Types, spec.Count, spec.For = b.scaled(breakerEndpoints, 10), int64(b.scaled(behindBreakers, 1000)), drainTime
	}
	return spec
}

// flood posts the load, then waits until all deliveries are delivered or dead, for DrainFor at
// most.
func (t floodKind) flood(ctx context.Context, b *bench, st *stack, run int64, r *floodResult) (err error) {
	before, err := readCores()
	if err != nil {
		return err
	}
	if r.flood, err = st.postArrays(ctx, t.load(b, run)); err != nil {
		return err
	}
	after, err := readCores()
	if err != nil {
		return err
	}
	r.rate, r.busy = float64(r.flood.Accepted)/r.flood.Took.Seconds(), after.busySince(before)
	end := time.Now()
	expected := r.flood.Accepted * int64(t.fanOut)
	if r.pending, err = st.missing(ctx, expected); err != nil {
		return err
	}
	r.left, err = st.awaitDelivered(ctx, expected, b.DrainFor)
	r.drained = time.Since(end)
	return err
}

// drainEvery is the interval at which the end of a backlog is checked beside a bystander.
const drainEvery = 250 * time.Millisecond

// awaitDelivered waits until no expected delivery is missing, for limit at most. left is how many
// are still missing.
func (s *stack) awaitDelivered(ctx context.Context, expected int64, limit time.Duration) (left int64, err error) {
	err = awaitEvery(ctx, drainEvery, limit, func() (done bool, err error) {
		left, err = s.missing(ctx, expected)
		return left <= 0, err
	})
	if errors.Is(err, errLate) {
		err = nil
	}
	return left, err
}

// missing returns how many of the expected deliveries are neither received nor dead.
func (s *stack) missing(ctx context.Context, expected int64) (int64, error) {
	t, err := s.receiver.tally(ctx)
	if err != nil {
		return 0, err
	}
	dead, err := s.daemons[0].count(ctx, `spendhook_deliveries_total{status="DEAD"}`)
	return expected - t.Distinct - dead, err
}

// report adds the figures. A flood that keeps all cores busy may double the goal for the other
// company's latency.
func (t floodKind) report(b *bench, rounds []floodResult) {
	name := func(what string) string { return t.name + ": " + what }
	busy := addOf(b, "tenants", name("cores busy while it floods"), "%", "", rounds, func(r floodResult) float64 { return 100 * r.busy })
	goal := 50.0
	if busy.Median >= 100*busyCores {
		goal = 100
	}
	addOf(b, "tenants", name("the other's p99"), "ms", less, rounds, func(r floodResult) float64 { return ms(r.other.P99) }).goal(goal)
	addOf(b, "tenants", name("the other's p50"), "ms", less, rounds, func(r floodResult) float64 { return ms(r.other.P50) })
	addOf(b, "tenants", name("the other's max"), "ms", less, rounds, func(r floodResult) float64 { return ms(r.other.Max) })
	addOf(b, "tenants", name("quiet p50"), "ms", less, rounds, func(r floodResult) float64 { return ms(r.quiet.P50) })
	addOf(b, "tenants", name("quiet p99"), "ms", less, rounds, func(r floodResult) float64 { return ms(r.quiet.P99) })
	addMustBeZero(b, "tenants", name("the other's events lost"), rounds, func(r floodResult) float64 { return float64(r.other.lost + r.quiet.lost) })
	addRefusals(b, "tenants", name("answers 429 and 503"), rounds, func(r floodResult) float64 { return float64(r.refused()) })
	addOf(b, "tenants", name("accepted of the flood"), "1/s", more, rounds, func(r floodResult) float64 { return r.rate })
	addOf(b, "tenants", name("pending at its end"), "", "", rounds, func(r floodResult) float64 { return float64(r.pending) })
	addOf(b, "tenants", name("left when the watch ended"), "", "", rounds, func(r floodResult) float64 { return float64(r.left) })
	addOf(b, "tenants", name("watched after its end"), "s", "", rounds, func(r floodResult) float64 { return r.drained.Seconds() })
}
