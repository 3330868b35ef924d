package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// settings are the flags of a run.
type settings struct {
	Spendhook string        `default:"bin/spendhook" help:"The daemon's program."`
	Dir       string        `default:"" help:"Directory for the files of Redis; it should be on a disk. Default: the system's temporary directory."`
	Rounds    int           `default:"3" help:"Rounds of each measurement."`
	LoadFor   time.Duration `default:"5s" help:"Duration of the load in a throughput round."`
	BareFor   time.Duration `default:"2s" help:"Duration of the bare loop before and after each round."`
	PacedFor  time.Duration `default:"20s" help:"Duration of a round with a steady rate, as in the latency and isolation scenarios."`
	Backlog   int64         `default:"100000" help:"Events of the backlog scenario."`
	Kills     int           `default:"5" help:"Kills of the restart scenario."`
	Spend     int           `default:"1000000" help:"Reimbursements of the spend scenarios, which have a tenth as many cards."`
	Scale     float64       `default:"1" help:"Share of the sizes in docs/benchmarks.md: 1,000,000 pending, 1,000 open breakers, 100,000 companies and others."`
	FloodFor  time.Duration `default:"30s" help:"Duration of a company's flood."`
	DrainFor  time.Duration `default:"60s" help:"How long to wait at most for the delivery of a backlog."`
	StopFor   time.Duration `default:"10s" help:"How long a master of the cluster stays stopped."`
	Shapes    []string      `placeholder:"NAME,..." help:"Floods of the tenants scenario: ${shapes}. Default: all."`
	Replicas  []int         `default:"1,4,16" help:"Numbers of idle replicas."`
	Profile   string        `placeholder:"DIR" help:"Write CPU profiles of the daemon to this directory."`
}

// scaled returns the part of a size that --scale asks for, and least if that is less.
func (s settings) scaled(size, least int) int {
	return max(least, int(math.Round(float64(size)*s.Scale)))
}

// bench is a run of scenarios with their figures.
type bench struct {
	settings
	progress io.Writer
	figures  []*figure
}

// scenario is one measurement of a run.
type scenario struct {
	name string
	what string
	run  func(context.Context, *bench) error
}

// scenarios in the order in which they run.
func scenarios() []scenario {
	return []scenario{
		shape{name: "one", companies: 1, fanOut: 1, batch: 1, goal: 0.34}.scenario("one event a request, one subscriber"),
		shape{name: "plain", companies: 1, fanOut: 1, batch: 1, plain: true}.scenario("one event a request, with net/http's client as the load generator"),
		shape{name: "batch", companies: 1, fanOut: 1, batch: 100, goal: 0.52}.scenario("arrays of 100 events, one subscriber"),
		shape{name: "fanout", companies: 1, fanOut: 10, batch: 1, goal: 0.65}.scenario("one event a request, 10 subscribers"),
		shape{name: "ports", companies: 256, fanOut: 1, batch: 1}.scenario("one event a request, 256 companies with a subscriber each on 256 ports"),
		{"filters", "10 subscribers with filters, of which 5 match, against 5 without", filters},
		{"hostilefilters", "one company has 50 filters of the highest cost, another sends 10 events/s", filtersHostile},
		{"burst", "all events at once, ten subscribers on one host", burst},
		{"signatures", "HTTP message signatures against Standard Webhooks", signatures},
		{"fields", "transform, order by key, stops, retries and contacts of a subscriber against none of them", fields},
		{"rate", "a backlog for a subscriber with a rate of 50/s", limited},
		{"latency", "200 events/s, one subscriber; then idle", latency},
		{"relay", "records of Kafka and of an outbox, against arrays of 100 events", relays},
		{"failing", "a receiver that fails half of the attempts", failing},
		{"isolation", "10 subscribers, some of them faulty", isolation10},
		{"isolation200", "200 subscribers, 50 of them hang", isolation200},
		{"backlog", "a backlog, its memory and its drain", backlog},
		{"always", "appendfsync always against everysec", always},
		{"takeover", "kill -9 of one of two replicas", takeover},
		{"restart", "kill -9 of a lone replica, and its restart", restart},
		{"balanced", "200 events/s to four replicas at random", balanced},
		{"rollout", "four replicas are restarted in turn, under load", rollout},
		{"tenants", "one company floods, another sends 10 events/s", tenants},
		{"tenants1000", "1,000 companies, 10 of them with a backlog", tenants1000},
		{"backlogged", "a fast subscriber beside a slow one with a backlog", backlogged},
		{"blocked", "a backlog behind open breakers", blocked},
		{"rare", "one of 1,000 subscribers matches few events and is paused", rare},
		{"samehost", "10 subscribers on one https host", samehost},
		{"https", "one and fanout over TLS", https},
		{"replicas", "idle replicas on one Redis, and on a Cluster", replicas},
		{"companies", "100,000 companies with 3 subscribers each", companies},
		{"cluster", "1,000 companies on three masters, of which one is stopped", cluster},
		{"lostqueue", "all keys of asynq are deleted", lostqueue},
		{"guess", "client secrets are guessed", guess},
		{"hostile", "one company attacks with its own token, the requests of another one are timed", hostile},
		{"observe", "the cost of metrics and traces", observe},
		{"console", "pages of the web console about a company with 1,000,000 events", consolePages},
		{"spend", "the spend API on SQLite, then on PostgreSQL", spend},
		{"reimbursements", "pages of reimbursements on PostgreSQL, of a company and of all", reimbursements},
	}
}

type runCmd struct {
	settings

	Scenarios []string `placeholder:"NAME,..." help:"Scenarios to run: ${scenarios}. Default: all."`
	Out       string   `placeholder:"FILE" help:"File for the JSON."`
}

// Run measures. The table shows a missed goal, which is not an error.
func (c *runCmd) Run(ctx context.Context, term *console) error {
	chosen, err := choose(c.Scenarios)
	if err != nil {
		return err
	}
	b := &bench{settings: c.settings, progress: term.err}
	r := report{Machine: describe(ctx, c.settings), Settings: c.settings}
	failure := b.runAll(ctx, chosen)
	r.Figures = b.figures
	r.print(term.out)
	if c.Out != "" && len(r.Figures) > 0 {
		if err := r.write(c.Out); err != nil {
			return err
		}
	}
	return failure
}

// choose returns the scenarios with these names, and all scenarios without a name.
func choose(names []string) ([]scenario, error) {
	all := scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var list []scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no scenario %q: there are %s", name, scenarioNames())
		}
		list = append(list, all[i])
	}
	return list, nil
}

func scenarioNames() string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

func (b *bench) runAll(ctx context.Context, list []scenario) error {
	if b.Profile != "" {
		if err := os.MkdirAll(b.Profile, 0o750); err != nil {
			return err
		}
	}
	for _, s := range list {
		b.note("%s: %s", s.name, s.what)
		if err := s.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// note prints progress.
func (b *bench) note(format string, args ...any) {
	fmt.Fprintf(b.progress, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// add adds a figure with its value in each round.
func (b *bench) add(scenario, name, unit string, way direction, values ...float64) *figure {
	f := newFigure(scenario, name, unit, way, values)
	b.figures = append(b.figures, f)
	return f
}

// addOf adds a figure whose value in each round f returns.
func addOf[T any](b *bench, scenario, name, unit string, way direction, rounds []T, f func(T) float64) *figure {
	return b.add(scenario, name, unit, way, each(rounds, f)...)
}

// addMustBeZero adds a count that must be 0 on any machine, however busy. Otherwise smoke fails.
func addMustBeZero[T any](b *bench, scenario, name string, rounds []T, f func(T) float64) {
	addRefusals(b, scenario, name, rounds, f).Must = true
}

// addRefusals adds a count of answers 429 and 503. The goal is 0, but smoke does not fail: on a
// busy machine the daemon's calls time out.
func addRefusals[T any](b *bench, scenario, name string, rounds []T, f func(T) float64) *figure {
	n := addOf(b, scenario, name, "", less, rounds, f).goal(0)
	n.Every = true
	return n
}

// missed returns an error for every figure with Must that misses its goal.
func (b *bench) missed() error {
	var err error
	for _, f := range b.figures {
		if f.Must && !f.met() {
			err = errors.Join(err, fmt.Errorf("%s: %s: %s", f.Scenario, f.Name, number(f.highest())))
		}
	}
	return err
}

// figure returns a figure of an earlier scenario of this run, or nil.
func (b *bench) figure(scenario, name string) *figure {
	for _, f := range b.figures {
		if f.Scenario == scenario && f.Name == name {
			return f
		}
	}
	return nil
}
