package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	rareSubscribers = 1000
	rareTypes       = 10_000        // each event matches one subscriber
	rareEvents      = 1_000_000     // while the rare subscriber is paused
	rareQuota       = 1_000_000     // pending events of a company: the default of limits.company_backlog
	rareProbeShare  = 10            // the figures before the pause are measured over one event in so many
	rareWarm        = 2 * rareTypes // events at full load
)

// rareSubscriptions returns the subscriptions of a company. The first one, of the rare subscriber,
// matches one type. So do those of the numbers below 100, and the others match all types that begin with
// theirs. The rare subscriber has the first endpoint to itself.
func rareSubscriptions(endpoints []string) []subscription {
	list := make([]subscription, rareSubscribers)
	for i := range list {
		url := endpoints[0]
		if i > 0 {
			url = endpoints[1+i%(len(endpoints)-1)]
		}
		list[i] = subscription{name: fmt.Sprintf("bench %d", i), url: fmt.Sprintf("%s/%d", url, i), event: numberedType(i)}
		if i >= 100 {
			list[i].event += "*"
		}
	}
	return list
}

// rarePhase is one load: before the pause or during it.
type rarePhase struct {
	load     loadResult
	rate     float64 // deliveries/s
	held     int64   // events for a paused subscriber
	pending  int64   // events at the end
	others   tally   // of all subscribers but the rare one
	bytes    float64 // of Redis for each event
	resident float64 // the daemon's resident memory at the end, in bytes
}

// rareResult is one round of rare.
type rareResult struct{ before, paused rarePhase }

// rare measures 999 subscribers of a company while another one, which matches few events, is paused.
func rare(ctx context.Context, b *bench) error {
	var rounds []rareResult
	for range b.Rounds {
		r, err := b.rareRound(ctx)
		if err != nil {
			return err
		}
		b.note("rare: the others' p50 %.1f, p99 %.1f ms (before %.1f, %.1f); %d of %d events pending, %d for the paused subscriber; %.0f bytes of redis an event (before %.0f); %.0f MB resident (before %.0f); %d answers 429 or 503",
			ms(r.paused.others.P50), ms(r.paused.others.P99), ms(r.before.others.P50), ms(r.before.others.P99), r.paused.pending, r.paused.load.Accepted, r.paused.held,
			r.paused.bytes, r.before.bytes, r.paused.resident/1e6, r.before.resident/1e6, r.paused.load.Refused)
		rounds = append(rounds, r)
	}
	add := func(name, unit string, f func(rareResult) float64) *figure {
		return addOf(b, "rare", name, unit, less, rounds, f)
	}
	add("the others' p99, of before the pause", "", func(r rareResult) float64 { return float64(r.paused.others.P99) / float64(r.before.others.P99) }).goal(1.5)
	add("the others' p99", "ms", func(r rareResult) float64 { return ms(r.paused.others.P99) })
	add("the others' p99 before the pause", "ms", func(r rareResult) float64 { return ms(r.before.others.P99) })
	addMustBeZero(b, "rare", "pending events of the others", rounds, func(r rareResult) float64 { return float64(r.paused.pending - r.paused.held) })
	add("pending events, of the company's quota", "%", func(r rareResult) float64 { return 100 * float64(r.paused.pending) / rareQuota }).goal(0.1)
	addRefusals(b, "rare", "answers 429 and 503", rounds, func(r rareResult) float64 { return float64(r.paused.load.Refused) })
	add("redis an event, of before the pause", "", func(r rareResult) float64 { return r.paused.bytes / r.before.bytes }).goal(1.2)
	add("redis an event", "bytes", func(r rareResult) float64 { return r.paused.bytes })
	add("daemon, resident, of before the pause", "", func(r rareResult) float64 { return r.paused.resident / r.before.resident }).goal(1.5)
	add("daemon, resident", "MB", func(r rareResult) float64 { return r.paused.resident / 1e6 })
	return nil
}

// rareRound sends at half of full load, first to all subscribers, then while the rare one is paused. At last
// it resumes the rare subscriber, which must then receive all its events.
func (b *bench) rareRound(ctx context.Context) (r rareResult, err error) {
	st, err := startStack(ctx, b.settings, stackOptions{environment: []string{fmt.Sprintf("SPENDHOOK_LIMITS_COMPANY_BACKLOG=%d", rareQuota)}})
	if err != nil {
		return r, err
	}
	defer st.stop()
	d := st.daemons[0]
	ids, err := d.subscribeAll(ctx, rareSubscriptions(st.receiver.Endpoints))
	if err != nil {
		return r, err
	}
	full, err := st.rarePhase(ctx, rareWarm, 0, false)
	if err != nil {
		return r, fmt.Errorf("full load: %w", err)
	}
	if err := st.redis.rewriteNoMore(ctx); err != nil { // it would use a core, more often in the longer phase
		return r, err
	}
	events := int64(b.scaled(rareEvents, 2*rareTypes))
	if r.before, err = st.rarePhase(ctx, max(rareTypes, events/rareProbeShare), full.rate/2, false); err != nil {
		return r, fmt.Errorf("before the pause: %w", err)
	}
	if err := d.control(ctx, ids[0], "pause"); err != nil {
		return r, err
	}
	if r.paused, err = st.rarePhase(ctx, events, full.rate/2, true); err != nil {
		return r, fmt.Errorf("during the pause: %w", err)
	}
	err = d.control(ctx, ids[0], "resume")
	return r, errors.Join(err, st.awaitDistinct(ctx, r.paused.load.Accepted), st.awaitSettled(ctx, settleTime))
}

// rarePhase sends events at a rate, or without pause at rate 0, and waits until they are delivered.
// During the pause, those for the rare subscriber are not: one in rareTypes, beginning with the first one.
func (s *stack) rarePhase(ctx context.Context, events int64, rate float64, paused bool) (p rarePhase, err error) {
	before, err := s.redis.usedMemory(ctx)
	if err != nil {
		return p, err
	}
	run, err := s.newRun(ctx)
	if err != nil {
		return p, err
	}
	p.load, err = s.postArrays(ctx, loadSpec{Run: run, Companies: 1, Types: rareTypes, Rate: rate / arraySize, Count: events, For: drainTime})
	if err != nil {
		return p, err
	}
	if paused {
		p.held = (p.load.Accepted + rareTypes - 1) / rareTypes
	}
	if err := s.awaitDistinct(ctx, p.load.Accepted-p.held); err != nil {
		return p, err
	}
	p.rate = float64(p.load.Accepted-p.held) / time.Since(p.load.Start).Seconds()
	err = await(ctx, settleTime, func() (_ bool, err error) {
		p.pending, err = s.redis.pending(ctx)
		return p.pending <= p.held, err
	})
	if err != nil && !errors.Is(err, errLate) { // if it is late, pending shows it
		return p, err
	}
	after, err := s.redis.usedMemory(ctx)
	if err != nil {
		return p, err
	}
	if p.others, err = s.receiver.latency(ctx, 1, len(s.receiver.Endpoints), 0); err != nil {
		return p, err
	}
	p.bytes = float64(after-before) / float64(p.load.Accepted)
	resident, err := s.daemons[0].count(ctx, "process_resident_memory_bytes")
	p.resident = float64(resident)
	return p, err
}

// control pauses or resumes a subscriber of the first company.
func (d *daemon) control(ctx context.Context, subscriber, verb string) error {
	var out struct{}
	err := d.call(ctx, http.MethodPost, "/api/v1/subscribers/"+subscriber+"/"+verb+"?companyUuid="+company(0), nil, &out)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}
