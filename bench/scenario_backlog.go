package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// probeShare is the part of a backlog whose accept rate is compared with that
// of an empty store.
const probeShare = 10

// backlog accepts events while none can be claimed, and then drains the backlog.
func backlog(ctx context.Context, b *bench) error {
	var list []backlogged
	for range b.Rounds {
		r, err := b.backlogRound(ctx)
		if err != nil {
			return err
		}
		b.note("backlog: empty: accepts %.0f/s, drains %.0f/s; full: accepts %.0f/s, drains %.0f/s; %.0f and %.0f bytes an event; %.0f MB resident",
			r.empty.accepts, r.empty.drains, r.full.accepts, r.full.drains, r.pendingBytes, r.deliveredBytes, r.resident/1e6)
		b.note("backlog: CPU of an event accepted, empty and full: daemon %.1f, %.1f µs; redis %.1f, %.1f; rewriting its file %.1f, %.1f",
			r.empty.daemon, r.full.daemon, r.empty.redis, r.full.redis, r.empty.rewriting, r.full.rewriting)
		list = append(list, r)
	}
	add := func(name, unit string, way better, f func(backlogged) float64) *figure {
		var values []float64
		for _, r := range list {
			values = append(values, f(r))
		}
		return b.add("backlog", name, unit, way, values...)
	}
	add("accept rate, of empty", "", more, func(r backlogged) float64 { return r.full.accepts / r.empty.accepts }).goal(0.85)
	add("the same while Redis does not rewrite its file", "", more, func(r backlogged) float64 { return r.calm / r.empty.accepts })
	add("drain rate, of empty", "", more, func(r backlogged) float64 { return r.full.drains / r.empty.drains }).goal(0.85)
	add("redis a pending event", "bytes", less, func(r backlogged) float64 { return r.pendingBytes }).goal(950)
	add("redis a delivered event", "bytes", less, func(r backlogged) float64 { return r.deliveredBytes }).goal(1400)
	add("daemon, most resident", "MB", less, func(r backlogged) float64 { return r.resident / 1e6 }).goal(150)
	add("drain", "1/s", more, func(r backlogged) float64 { return r.full.drains })
	return nil
}

// flow is how fast events came in and went out, and the CPU-µs that each cost
// coming in.
type flow struct {
	accepts, drains          float64
	daemon, redis, rewriting float64
}

// backlogged is one round. Bytes are Redis's, an event; resident is the most
// that the daemon ever had in memory.
type backlogged struct {
	empty, full                  flow
	calm                         float64 // accepts of a full store whose file Redis does not rewrite meanwhile
	pendingBytes, deliveredBytes float64
	resident                     float64
}

// backlogRound fills and drains a small part, then the whole.
func (b *bench) backlogRound(ctx context.Context) (r backlogged, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return r, err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return r, err
	}
	probe := b.Backlog / probeShare
	if _, err := st.sustain(ctx, piled(1000, 0), 1); err != nil { // so that the queues and the connections are there
		return r, err
	}
	small := pile{st: st}
	if err := errors.Join(small.fill(ctx, probe), small.drain(ctx)); err != nil {
		return r, err
	}
	big := pile{st: st}
	err = errors.Join(big.fill(ctx, b.Backlog-2*probe), st.redis.rewriteNoMore(ctx), big.fill(ctx, probe), st.redis.rewriteAgain(ctx))
	if err != nil {
		return r, err
	}
	r.calm = big.accepts
	if err := errors.Join(big.fill(ctx, probe), big.drain(ctx)); err != nil {
		return r, err
	}
	r.empty, r.full = small.flow, big.flow
	r.pendingBytes, r.deliveredBytes = big.pendingBytes, big.deliveredBytes
	peak, err := peakMemory(st.daemons[0].Pid())
	r.resident = float64(peak)
	return r, err
}

// piled is a load of arrays of 100, from number first on.
func piled(count, first int64) loadSpec {
	return loadSpec{Companies: 1, Batch: 100, First: first, Count: count, For: drainTime}
}

// pile is a backlog that grows with fill and goes with drain.
type pile struct {
	st      *stack
	run     int64
	size    int64
	memory  int64 // Redis's, before the first event
	counted int64 // deliveries the daemon had recorded before the first event

	flow
	pendingBytes, deliveredBytes float64
}

// fill adds n events while none can be claimed. flow.accepts is of the last
// fill.
func (p *pile) fill(ctx context.Context, n int64) (err error) {
	if p.size == 0 {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	spec := piled(n, p.size)
	spec.Targets, spec.Clients, spec.Run = p.st.targets(), bareClients, p.run
	before, err := p.st.usage()
	if err != nil {
		return err
	}
	load, _, err := generate(ctx, spec)
	if err != nil {
		return err
	}
	after, err := p.st.usage()
	if err = errors.Join(err, load.clean()); err != nil {
		return err
	}
	each := func(t time.Duration) float64 { return float64(t.Microseconds()) / float64(load.Accepted) }
	cpu := after.since(before)
	p.daemon, p.redis, p.rewriting = each(cpu.daemon), each(cpu.redis), each(cpu.rewrites)
	p.size += load.Accepted
	p.accepts = float64(load.Accepted) / load.Took.Seconds()
	p.pendingBytes, err = p.perEvent(ctx)
	if pending, err2 := p.st.redis.pending(ctx); pending != p.size {
		return errors.Join(err2, fmt.Errorf("%d events are pending, %d were accepted", pending, p.size))
	}
	return err
}

func (p *pile) begin(ctx context.Context) (err error) {
	if p.run, err = p.st.newRun(ctx); err != nil {
		return err
	}
	if p.counted, err = p.st.daemons[0].delivered(ctx); err != nil {
		return err
	}
	if p.memory, err = p.st.redis.usedMemory(ctx); err != nil {
		return err
	}
	return p.st.redis.forbidClaims(ctx)
}

// drain starts the delivery of the backlog and waits until all of it is recorded.
func (p *pile) drain(ctx context.Context) error {
	if err := p.st.redis.allowClaims(ctx); err != nil {
		return err
	}
	start := time.Now()
	if err := p.st.awaitDistinct(ctx, p.size); err != nil {
		return err
	}
	if err := p.st.awaitRecorded(ctx, p.counted+p.size); err != nil {
		return err
	}
	p.drains = float64(p.size) / time.Since(start).Seconds()
	if err := p.st.awaitSettled(ctx, settleTime); err != nil {
		return err
	}
	var err error
	p.deliveredBytes, err = p.perEvent(ctx)
	return err
}

// perEvent is how much Redis has grown by each event of the pile.
func (p *pile) perEvent(ctx context.Context) (float64, error) {
	now, err := p.st.redis.usedMemory(ctx)
	return float64(now-p.memory) / float64(p.size), err
}
