package main

import (
	"context"
	"time"
)

// shape describes a throughput scenario.
type shape struct {
	name      string
	companies int
	fanOut    int   // subscribers of each company
	batch     int   // events in a request
	count     int64 // events of a round, all at once; 0: as many as in the time of a round
	plain     bool  // the load generator uses net/http's client
	goal      float64
	receiver  receiverOptions
	bareHosts int // endpoints that the bare loop sends to; 0: one
	connsGoal int // how many connections the daemon may open to the receiver; 0: no goal
}

// maxAhead is how many events a round accepts at most. It bounds the time to deliver them.
const maxAhead = 1_000_000

func (s shape) scenario(what string) scenario { return scenario{s.name, what, s.run} }

func (s shape) run(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{receiver: s.receiver, bareHosts: s.bareHosts})
	if err != nil {
		return err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, s.companies, s.fanOut); err != nil {
		return err
	}
	list, err := b.rounds(ctx, s.name, st, func(ctx context.Context) (sustained, error) {
		return st.sustain(ctx, s.load(b.LoadFor), s.fanOut)
	})
	if err != nil {
		return err
	}
	s.report(b, list)
	return b.keepStats(ctx, st, s.name)
}

func (s shape) load(length time.Duration) loadSpec {
	if s.count > 0 {
		return loadSpec{Companies: s.companies, Batch: s.batch, Count: s.count, For: drainTime}
	}
	return loadSpec{Companies: s.companies, Batch: s.batch, Plain: s.plain, Count: maxAhead, For: length}
}

const (
	ratioName = "of the bare loop"
	rateName  = "deliveries/s"
	daemonCPU = "daemon CPU a delivery"
	redisCPU  = "redis CPU a delivery"
)

func (s shape) report(b *bench, list []sustained) {
	ratio := b.add(s.name, ratioName, "", more, each(list, sustained.ratio)...)
	if s.goal > 0 {
		ratio.goal(s.goal)
	}
	if one := b.figure("one", ratioName); one != nil && s.name == "ports" {
		b.add(s.name, "of one endpoint's figure", "", more,
			each(list, func(r sustained) float64 { return r.ratio() / one.Median })...).goal(0.8)
	}
	b.add(s.name, rateName, "1/s", more, each(list, sustained.rate)...)
	b.add(s.name, "bare loop", "1/s", "", each(list, func(r sustained) float64 { return r.bare })...)
	b.add(s.name, "accepted", "1/s", more, each(list, sustained.accepted)...)
	b.add(s.name, "answer p99", "ms", less, each(list, func(r sustained) float64 { return float64(r.load.P99) / 1000 })...)
	if s.connsGoal > 0 {
		opened := 0.0
		for _, r := range list {
			opened += float64(r.opened)
		}
		b.add(s.name, "connections opened, in all rounds", "", less, opened).goal(float64(s.connsGoal))
	}
	addRefusals(b, s.name, "answers 429 and 503", list, func(r sustained) float64 { return float64(r.load.Refused) })
	b.addCPU(s.name, list)
}

// addCPU adds the CPU time of a delivery in each process.
func (b *bench) addCPU(name string, list []sustained) {
	b.add(name, daemonCPU, "µs", less, each(list, func(r sustained) float64 { return r.per(r.cpu.daemon) })...)
	b.add(name, redisCPU, "µs", less, each(list, func(r sustained) float64 { return r.per(r.cpu.redis) })...)
	b.add(name, "rewriting the AOF a delivery", "µs", "", each(list, func(r sustained) float64 { return r.per(r.cpu.rewrites) })...)
	b.add(name, "receiver CPU a delivery", "µs", "", each(list, func(r sustained) float64 { return r.per(r.cpu.receiver) })...)
	b.add(name, "load CPU a delivery", "µs", "", each(list, func(r sustained) float64 { return r.per(r.cpu.load) })...)
}
