package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const (
	guesses    = 10_000
	guessRate  = 1000 // guesses/s, except in the attack that is as fast as possible
	otherRate  = 300  // other requests a second
	otherConns = 4
)

// guessingNetwork is the prefix of the addresses that guesses come from. The daemon trusts
// them as proxies, whose headers name the client.
const guessingNetwork = "127.1"

const proxied = `tls: {trusted_proxies: [` + guessingNetwork + `.0.0/16], client_certificates: {subscribers: optional, reimbursements: optional}}
`

// guessAttack is a way to guess a client's secret 10,000 times.
type guessAttack struct {
	name        string
	file        string  // of the profile
	rate        float64 // guesses/s; 0: each connection as fast as it is answered
	distributed bool    // each guess names another source address and another client
}

func guessAttacks() []guessAttack {
	return []guessAttack{
		{name: "1,000/s", file: "guess-paced", rate: guessRate},
		{name: "1,000/s, distributed", file: "guess-distributed", rate: guessRate, distributed: true},
		{name: "as fast as possible", file: "guess"},
	}
}

// guessFigures is the result of a run of guesses. The p99s, in ms, are those of other clients'
// requests; cost is the CPU time of the daemon for one guess, in µs.
type guessFigures struct {
	quiet, p99, rate, cost float64
}

// guess measures the latency of requests to the API while an attacker guesses a client's secret,
// and just before.
func guess(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{more: proxied})
	if err != nil {
		return err
	}
	defer st.stop()
	d := st.daemons[0]
	if _, err := others(d, b.PacedFor/warmShare).inProcess(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	all := guessAttacks()
	runs := make([][]guessFigures, len(all))
	for round := range b.Rounds {
		for i, o := range all {
			from := fmt.Sprintf("%s.%d.%d", guessingNetwork, round, i+1)
			r, err := b.guessRound(ctx, d, o, from)
			if err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			b.note("guess, %s: p99 of others %.2f ms, quiet %.2f; %.0f guesses/s, %.0f µs of the daemon each",
				o.name, r.p99, r.quiet, r.rate, r.cost)
			runs[i] = append(runs[i], r)
		}
	}
	for i, o := range all {
		b.addGuess(o, runs[i])
	}
	return nil
}

func (b *bench) addGuess(o guessAttack, runs []guessFigures) {
	add := func(name, unit string, way direction, f func(guessFigures) float64) *figure {
		return addOf(b, "guess", o.name+": "+name, unit, way, runs, f)
	}
	add("quiet p99 of others", "ms", less, func(r guessFigures) float64 { return r.quiet })
	add("p99 of others", "ms", less, func(r guessFigures) float64 { return r.p99 })
	add("p99 of others, of quiet", "", less, func(r guessFigures) float64 { return r.p99 / r.quiet }).goal(3)
	add("daemon's CPU a guess", "µs", less, func(r guessFigures) float64 { return r.cost })
	add("guesses", "1/s", "", func(r guessFigures) float64 { return r.rate })
}

// guessRound times the requests of other clients without an attack, and then for the same time
// while an attacker guesses the secret of a new client.
func (b *bench) guessRound(ctx context.Context, d *daemon, o guessAttack, from string) (r guessFigures, err error) {
	client, err := d.newClient(ctx)
	if err != nil {
		return r, err
	}
	length := guesses / guessRate * time.Second
	quiet, alone, err := d.timed(func() (askResult, error) { return others(d, length).inProcess(ctx) })
	if err != nil {
		return r, err
	}
	spec := guessSpec{
		URL: d.base + "/oauth/token", From: from, Distributed: o.distributed, Client: client,
		Guesses: guesses, Rate: o.rate, Conns: bareClients, For: length,
	}
	var result guessResult
	stopProfile := b.startProfile(ctx, d, length, o.file)
	loud, both, err := d.timed(func() (askResult, error) {
		done := make(chan error, 1)
		go func() { done <- spec.inProcess(ctx, &result) }()
		loud, err := others(d, length).inProcess(ctx)
		return loud, errors.Join(err, <-done)
	})
	if err = errors.Join(err, stopProfile(), result.clean()); err != nil {
		return r, err
	}
	return guessFigures{
		quiet: ms(quiet.P99), p99: ms(loud.P99), rate: float64(result.sent()) / result.Took.Seconds(),
		cost: float64((both - alone).Microseconds()) / float64(result.sent()),
	}, nil
}

// others returns requests of other clients.
func others(d *daemon, length time.Duration) *askSpec {
	return &askSpec{
		Base: d.base, Token: d.token, Asks: []ask{{Path: "/api/v1/subscribers?companyUuid=" + company(0)}},
		Clients: otherConns, Rate: otherRate, For: length,
	}
}

// timed returns the result of f, and the CPU time of the daemon during f.
func (d *daemon) timed(f func() (askResult, error)) (askResult, time.Duration, error) {
	before, _, err := cpuTime(d.Pid())
	if err != nil {
		return askResult{}, 0, err
	}
	r, err := f()
	after, _, err2 := cpuTime(d.Pid())
	return r, after - before, errors.Join(err, err2)
}

// newClient makes an OAuth client and returns its id.
func (d *daemon) newClient(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, d.program, "client", "create", "--config", d.config(), //nolint:gosec // our own arguments
		"--name", "bench", "--company", company(0), "--scope", "events:read", "--json")
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("create a client: %w: %s", err, log.String())
	}
	var made struct {
		ID string `json:"clientId"`
	}
	if err = json.Unmarshal(out, &made); err == nil && made.ID == "" {
		err = errors.New("create a client: the answer has no id")
	}
	return made.ID, err
}
