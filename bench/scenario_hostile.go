package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	hostileEvents  = 400       // of the attacker
	hostileBytes   = 250 << 10 // metadata of each event
	hostileReaders = 32
	hostileBodies  = 100
	hostileJobs    = 150
	victimRate     = 30 // requests/s of the other company
	victimConns    = 8
)

// hostileRound is one round of hostile.
type hostileRound struct {
	quiet, loud askResult
	attack      hostileResult
	resident    float64 // the daemon's largest resident memory, in bytes
}

// hostile measures the requests of a company while another one reads its largest pages, leaves
// bodies unfinished and starts dry runs, all at once.
func hostile(ctx context.Context, b *bench) error {
	var rounds []hostileRound
	for range b.Rounds {
		r, err := b.hostileRound(ctx)
		if err != nil {
			return err
		}
		b.note("hostile: the other's p95 %.1f ms, quiet %.1f; %d and %d refused; %.0f MB resident; %d pages of %.0f MB, %d bodies held, %d jobs, %d answers 429 or 503, %d others %s",
			ms(r.loud.P95), ms(r.quiet.P95), r.loud.Refused, r.quiet.Refused, r.resident/1e6,
			r.attack.Pages, float64(r.attack.Bytes)/1e6, r.attack.Held, r.attack.Jobs, r.attack.Refused, r.attack.Others, r.attack.Trouble)
		rounds = append(rounds, r)
	}
	addOf(b, "hostile", "daemon, most resident", "MB", less, rounds, func(r hostileRound) float64 { return r.resident / 1e6 }).goal(400)
	addOf(b, "hostile", "the other's p95, of quiet", "", less, rounds, func(r hostileRound) float64 { return float64(r.loud.P95) / float64(r.quiet.P95) }).goal(3)
	addOf(b, "hostile", "the other's p95", "ms", less, rounds, func(r hostileRound) float64 { return ms(r.loud.P95) })
	addOf(b, "hostile", "quiet p95", "ms", less, rounds, func(r hostileRound) float64 { return ms(r.quiet.P95) })
	addRefusals(b, "hostile", "the other's requests refused with 503", rounds, func(r hostileRound) float64 { return float64(r.loud.Refused + r.quiet.Refused) })
	addOf(b, "hostile", "pages read by the attacker", "", "", rounds, func(r hostileRound) float64 { return float64(r.attack.Pages) })
	return nil
}

func (b *bench) hostileRound(ctx context.Context) (r hostileRound, err error) {
	// The rate limit of a company has its default value, because it is part of the defence.
	st, err := startStack(ctx, b.settings, stackOptions{environment: []string{
		"SPENDHOOK_LIMITS_COMPANY_RATE=2000", "SPENDHOOK_LIMITS_COMPANY_BURST=4000",
	}})
	if err != nil {
		return r, err
	}
	defer st.stop()
	d := st.daemons[0]
	ids, err := st.subscribe(ctx, 2, 1)
	if err != nil {
		return r, err
	}
	attacker, err := d.mintFor(ctx, 0)
	victim, err2 := d.mintFor(ctx, 1)
	if err = errors.Join(err, err2, d.fill(ctx, b.scaled(hostileEvents, 100))); err != nil {
		return r, err
	}
	spec := askSpec{Base: d.base, Token: victim, Clients: victimConns, Rate: victimRate, For: b.PacedFor / warmShare}
	spec.Asks = victimAsks("warm", ids[1])
	if _, err = spec.inProcess(ctx); err != nil {
		return r, fmt.Errorf("warm up: %w", err)
	}
	spec.Asks, spec.For = victimAsks("quiet", ids[1]), b.PacedFor
	if r.quiet, err = spec.inProcess(ctx); err != nil {
		return r, fmt.Errorf("quiet: %w", err)
	}
	attack := hostileSpec{
		Address: strings.TrimPrefix(d.base, "http://"), Token: attacker, Subscriber: ids[0],
		Readers: hostileReaders, Unfinished: hostileBodies, Jobs: b.scaled(hostileJobs, 10), For: b.PacedFor + b.PacedFor/warmShare,
	}
	done := make(chan error, 1)
	go func() {
		_, err := runWorker(ctx, "hostile", &attack, &r.attack, attack.For+time.Minute)
		done <- err
	}()
	spec.Asks = victimAsks("loud", ids[1])
	stopProfile := b.startProfile(ctx, d, b.PacedFor, "hostile")
	r.loud, err = spec.inProcess(ctx)
	if err = errors.Join(err, <-done, stopProfile()); err != nil {
		return r, fmt.Errorf("under attack: %w; the daemon's log: %s", err, d.logTail())
	}
	peak, err := peakMemory(d.Pid())
	r.resident = float64(peak)
	return r, errors.Join(err, d.alive())
}

// fill emits events of the attacker, each with nearly as much metadata as an event may have.
func (d *daemon) fill(ctx context.Context, events int) error {
	metadata := map[string]string{"note": strings.Repeat("n", hostileBytes)}
	for i := range events {
		in := map[string]any{
			"id": fmt.Sprintf("hostile-%d", i), "companyUuid": company(0), "event": fmt.Sprintf("HOSTILE_%d", i%2),
			"timestamp": time.Now().UnixMilli(), "metadata": metadata,
		}
		var out struct{}
		if err := d.call(ctx, http.MethodPost, "/api/v1/events", in, &out); err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	return nil
}

// victimAsks returns the other company's requests: an event, a page of events and a dry run, in
// turn.
func victimAsks(prefix, subscriber string) []ask {
	list := make([]ask, 0, asksOf)
	now := time.Now()
	for i := 0; len(list) < asksOf-3; i++ {
		event, _ := json.Marshal(map[string]any{ //nolint:errchkjson // texts and numbers
			"id": fmt.Sprintf("%s-%d", prefix, i), "event": "HOSTILE_NOT", "timestamp": now.UnixMilli(), "metadata": map[string]int{"n": i},
		})
		since := now.Add(-time.Hour).UTC().Format(time.RFC3339)
		list = append(list,
			ask{Path: "/api/v1/events", Body: string(event)},
			ask{Path: "/api/v1/events?size=20"},
			ask{Path: "/api/v1/subscribers/" + subscriber + "/recover", Body: fmt.Sprintf(`{"since":%q,"dryRun":true}`, since)},
		)
	}
	return list
}
