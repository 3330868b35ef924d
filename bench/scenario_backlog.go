package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// probeShare: the rates at the end of a backlog are measured over one event in so many.
const probeShare = 10

// backlog accepts events while none can be started, and then drains the backlog.
func backlog(ctx context.Context, b *bench) error {
	var list []backlogResult
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
	add := func(name, unit string, way direction, f func(backlogResult) float64) *figure {
		return addOf(b, "backlog", name, unit, way, list, f)
	}
	add("accept rate, of empty", "", more, func(r backlogResult) float64 { return r.full.accepts / r.empty.accepts }).goal(0.85)
	add("the same while Redis does not rewrite its file", "", more, func(r backlogResult) float64 { return r.calm / r.empty.accepts })
	add("drain rate, of empty", "", more, func(r backlogResult) float64 { return r.full.drains / r.empty.drains }).goal(0.85)
	add("redis a pending event", "bytes", less, func(r backlogResult) float64 { return r.pendingBytes }).goal(950)
	add("redis a delivered event", "bytes", less, func(r backlogResult) float64 { return r.deliveredBytes }).goal(1400)
	add("daemon, most resident", "MB", less, func(r backlogResult) float64 { return r.resident / 1e6 }).goal(150)
	add("drain", "1/s", more, func(r backlogResult) float64 { return r.full.drains })
	return nil
}

// flow has the rates at which events were accepted and delivered, and the CPU time in µs of an
// accepted event.
type flow struct {
	accepts, drains          float64
	daemon, redis, rewriting float64
}

// backlogResult is one round. Bytes are those of Redis for each event. resident is the daemon's
// largest resident memory.
type backlogResult struct {
	empty, full                  flow
	calm                         float64 // accept rate of a full store while Redis does not rewrite its file
	pendingBytes, deliveredBytes float64
	resident                     float64
}

// backlogRound fills and drains an empty store with a small backlog, then with the whole one.
func (b *bench) backlogRound(ctx context.Context) (r backlogResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{})
	if err != nil {
		return r, err
	}
	defer st.stop()
	if _, err := st.subscribe(ctx, 1, 1); err != nil {
		return r, err
	}
	probe := b.Backlog / probeShare
	if _, err := st.sustain(ctx, arrayLoad(1000, 0), 1); err != nil { // not measured: it creates queues and connections
		return r, err
	}
	small := heldBacklog{st: st}
	if err := errors.Join(small.fill(ctx, probe), small.drain(ctx)); err != nil {
		return r, err
	}
	big := heldBacklog{st: st}
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

// arrayLoad is a load of arrays of 100, from number first on.
func arrayLoad(count, first int64) loadSpec {
	return loadSpec{Companies: 1, Batch: 100, First: first, Count: count, For: drainTime}
}

// heldBacklog is a backlog that grows by fill, while no event can be started, until drain.
type heldBacklog struct {
	st      *stack
	run     int64
	size    int64 // events
	memory  int64 // of Redis before the first event
	counted int64 // deliveries that the daemon had recorded before the first event

	flow
	pendingBytes, deliveredBytes float64
}

// fill adds n events while none can be started. It replaces the rate and the CPU times of flow.
func (p *heldBacklog) fill(ctx context.Context, n int64) (err error) {
	if p.size == 0 {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	spec := arrayLoad(n, p.size)
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

func (p *heldBacklog) begin(ctx context.Context) (err error) {
	if p.run, err = p.st.newRun(ctx); err != nil {
		return err
	}
	if p.counted, err = p.st.daemons[0].delivered(ctx); err != nil {
		return err
	}
	if p.memory, err = p.st.redis.usedMemory(ctx); err != nil {
		return err
	}
	return p.st.redis.forbidTurns(ctx)
}

// drain starts the delivery of the backlog and waits until all of it is recorded.
func (p *heldBacklog) drain(ctx context.Context) error {
	if err := p.st.redis.allowTurns(ctx); err != nil {
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

// perEvent returns by how many bytes Redis has grown for each event of the backlog.
func (p *heldBacklog) perEvent(ctx context.Context) (float64, error) {
	now, err := p.st.redis.usedMemory(ctx)
	return float64(now-p.memory) / float64(p.size), err
}
