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
	guessRate  = 1000 // a second, when they are paced
	otherRate  = 300  // other requests a second
	otherConns = 4
)

// guessingNetwork is the prefix of the addresses that guesses come from. The daemon trusts
// them as proxies, whose headers name the client.
const guessingNetwork = "127.1"

const proxied = `tls: {trusted_proxies: [` + guessingNetwork + `.0.0/16], client_certificates: {subscribers: optional, reimbursements: optional}}
`

// onslaught is a way to guess a client's secret 10,000 times.
type onslaught struct {
	name       string
	file       string  // of the profile
	rate       float64 // guesses/s; 0: each connection as fast as it is answered
	everywhere bool    // each from another address, at another client
}

func onslaughts() []onslaught {
	return []onslaught{
		{name: "1,000/s", file: "guess-paced", rate: guessRate},
		{name: "1,000/s from everywhere", file: "guess-everywhere", rate: guessRate, everywhere: true},
		{name: "as fast as they go", file: "guess"},
	}
}

// besieged is the result of a run of guesses. The p99s, in ms, are those of other clients'
// requests; cost is the CPU time of the daemon for one guess, in µs.
type besieged struct {
	quiet, p99, rate, cost float64
}

// guess times requests to the API while an attacker guesses a client's secret,
// against the same just before.
func guess(ctx context.Context, b *bench) error {
	st, err := startStack(ctx, b.settings, stackOptions{more: proxied})
	if err != nil {
		return err
	}
	defer st.stop()
	d := st.daemons[0]
	if _, err := others(d, b.PacedFor/warmShare).asked(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	all := onslaughts()
	runs := make([][]besieged, len(all))
	for round := range b.Rounds {
		for i, o := range all {
			from := fmt.Sprintf("%s.%d.%d", guessingNetwork, round, i+1)
			r, err := b.besiege(ctx, d, o, from)
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

func (b *bench) addGuess(o onslaught, runs []besieged) {
	values := func(f func(besieged) float64) (list []float64) {
		for _, r := range runs {
			list = append(list, f(r))
		}
		return list
	}
	b.add("guess", o.name+": quiet p99 of others", "ms", less, values(func(r besieged) float64 { return r.quiet })...)
	b.add("guess", o.name+": p99 of others", "ms", less, values(func(r besieged) float64 { return r.p99 })...)
	b.add("guess", o.name+": p99 of others, of quiet", "", less, values(func(r besieged) float64 { return r.p99 / r.quiet })...).goal(3)
	b.add("guess", o.name+": daemon's CPU a guess", "µs", less, values(func(r besieged) float64 { return r.cost })...)
	b.add("guess", o.name+": guesses", "1/s", "", values(func(r besieged) float64 { return r.rate })...)
}

// besiege times the requests of other clients without an attack, and then for the same time
// while an attacker guesses the secret of a new client.
func (b *bench) besiege(ctx context.Context, d *daemon, o onslaught, from string) (r besieged, err error) {
	client, err := d.newClient(ctx)
	if err != nil {
		return r, err
	}
	length := guesses / guessRate * time.Second
	quiet, alone, err := d.timed(func() (askResult, error) { return others(d, length).asked(ctx) })
	if err != nil {
		return r, err
	}
	spec := guessSpec{
		URL: d.base + "/oauth/token", From: from, Everywhere: o.everywhere, Client: client,
		Guesses: guesses, Rate: o.rate, Conns: bareClients, For: length,
	}
	var result guessResult
	stopProfile := b.startProfile(ctx, d, length, o.file)
	loud, both, err := d.timed(func() (askResult, error) {
		done := make(chan error, 1)
		go func() { done <- spec.guessed(ctx, &result) }()
		loud, err := others(d, length).asked(ctx)
		return loud, errors.Join(err, <-done)
	})
	if err = errors.Join(err, stopProfile(), result.clean()); err != nil {
		return r, err
	}
	return besieged{
		quiet: ms(quiet.P99), p99: ms(loud.P99), rate: float64(result.sent()) / result.Took.Seconds(),
		cost: float64((both - alone).Microseconds()) / float64(result.sent()),
	}, nil
}

// others are requests of other clients meanwhile.
func others(d *daemon, length time.Duration) *askSpec {
	return &askSpec{
		Base: d.base, Token: d.token, Asks: []ask{{Path: "/api/v1/subscribers?companyUuid=" + company(0)}},
		Clients: otherConns, Rate: otherRate, For: length,
	}
}

// timed is what f returns, and the CPU time of the daemon until then.
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
		err = errors.New("a client without an id")
	}
	return made.ID, err
}
