package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"time"

	"spendhook/internal/pgtest"
)

const (
	// spendTime is how long writing or importing the data may take.
	spendTime = 15 * time.Minute
	spendRate = 500 // requests/s of the reads
	warmShare = 10  // requests for this part of the measured time come before it, unmeasured
)

// spend imports the demo data, and reads and writes over HTTP, first with SQLite, then with a
// PostgreSQL.
func spend(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp(b.Dir, "bench-spend-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	data, err := writeSpendData(ctx, b.Spendhook, dir, b.Spend)
	if err != nil {
		return err
	}
	b.note("spend: %d rows in %d companies", data.rows, len(data.companies))
	for _, on := range []struct {
		scenario string
		database func() (url string, remove func(), err error)
	}{
		{"spend", func() (string, func(), error) { return "", func() {}, nil }},
		{"spend postgresql", launchPostgres},
	} {
		var list []spendResult
		for range b.Rounds {
			r, err := b.spendRound(ctx, dir, data, on.database, func(ctx context.Context, d *daemon, r *spendResult) error { return b.askAll(ctx, d, data, r) })
			if err != nil {
				return fmt.Errorf("%s: %w", on.scenario, err)
			}
			b.note("%s: imports %.0f rows/s in %.0f MB; pages p50 %.1f ms, p99 %.1f ms; cards p50 %.2f ms, p99 %.2f ms; %.0f creates/s; %.0f MB resident",
				on.scenario, r.imported, r.importer/1e6, ms(r.pages.P50), ms(r.pages.P99), ms(r.cards.P50), ms(r.cards.P99), r.creates.rate(), r.resident/1e6)
			list = append(list, r)
		}
		b.addSpend(on.scenario, list)
	}
	return nil
}

func launchPostgres() (url string, remove func(), err error) {
	return pgtest.Launch("fsync=on", "shared_buffers=256MB")
}

// spendResult is one round on a new database. Sizes are in bytes.
type spendResult struct {
	imported              float64 // rows/s
	importer              float64 // the import's largest resident memory
	pages, cards, creates askResult
	resident              float64 // the daemon's largest resident memory
}

func (b *bench) spendRound(ctx context.Context, dir string, data *spendData, database func() (string, func(), error), ask func(context.Context, *daemon, *spendResult) error) (r spendResult, err error) {
	own, err := os.MkdirTemp(dir, "round-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(own) }()
	url, remove, err := database()
	if err != nil {
		return r, err
	}
	defer remove()
	redis, err := startRedis(ctx, own)
	if err != nil {
		return r, err
	}
	defer redis.Kill()
	d, err := b.startImported(ctx, daemonOptions{program: b.Spendhook, dir: own, id: "daemon", redis: redis.url(), storage: url}, data, &r)
	if err != nil {
		return r, err
	}
	defer d.Kill()
	if err := ask(ctx, d, &r); err != nil {
		return r, fmt.Errorf("%w; the daemon's log: %s", err, d.logTail())
	}
	peak, err := peakMemory(d.Pid())
	r.resident = float64(peak)
	return r, errors.Join(err, d.alive())
}

// startImported starts a daemon on a new database with the data.
func (b *bench) startImported(ctx context.Context, o daemonOptions, data *spendData, r *spendResult) (*daemon, error) {
	d, err := startDaemon(ctx, o) // creates the tables
	if err != nil {
		return nil, err
	}
	d.Kill()
	if r.imported, r.importer, err = importSpend(ctx, o, data); err != nil {
		return nil, err
	}
	return startDaemon(ctx, o)
}

// importSpend runs `spendhook import` while no daemon runs.
func importSpend(ctx context.Context, o daemonOptions, data *spendData) (rate, peak float64, err error) {
	config, err := o.configure()
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.Command(o.program, "import", "--config", config, data.file) //nolint:gosec,noctx // our own arguments; it is ended by its pid
	start := time.Now()
	if err := runProgram(ctx, cmd, spendTime); err != nil {
		return 0, 0, err
	}
	rate = float64(data.rows) / time.Since(start).Seconds()
	if used, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		peak = float64(used.Maxrss << 10)
	}
	return rate, peak, nil
}

// askAll requests pages, then cards, each at a steady rate, and then creates cards as fast as
// possible. The seed makes the requests the same in every round.
func (b *bench) askAll(ctx context.Context, d *daemon, data *spendData, r *spendResult) (err error) {
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // nothing secret
	spec := askSpec{Base: d.base, Token: d.token, Clients: bareClients, Rate: spendRate, For: b.PacedFor / warmShare}
	spec.Asks = data.pages(chance)
	if _, err := spec.inProcess(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	spec.Asks, spec.For = data.pages(chance), b.PacedFor
	stopProfile := b.startProfile(ctx, d, b.PacedFor, "spend-pages")
	r.pages, err = spec.inProcess(ctx)
	if err = errors.Join(err, stopProfile()); err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	spec.Asks = data.cardReads(chance)
	if r.cards, err = spec.inProcess(ctx); err != nil {
		return fmt.Errorf("cards: %w", err)
	}
	spec.Asks, spec.Rate, spec.For = data.cardCreates(chance), 0, b.LoadFor
	stopProfile = b.startProfile(ctx, d, b.LoadFor, "spend-creates")
	r.creates, err = spec.inProcess(ctx)
	if err = errors.Join(err, stopProfile()); err != nil {
		return fmt.Errorf("creates: %w", err)
	}
	return nil
}

// inProcess runs a process that sends the requests. It returns an error if a request failed.
func (s *askSpec) inProcess(ctx context.Context) (r askResult, err error) {
	_, err = runWorker(ctx, "ask", s, &r, s.For+time.Minute)
	return r, cmp.Or(err, r.clean())
}

func (b *bench) addSpend(scenario string, list []spendResult) {
	add := func(name, unit string, way direction, f func(spendResult) float64) *figure {
		return addOf(b, scenario, name, unit, way, list, f)
	}
	add("import", "rows/s", more, func(r spendResult) float64 { return r.imported }).goal(20_000)
	add("import, most resident", "MB", less, func(r spendResult) float64 { return r.importer / 1e6 }).goal(200)
	add("reimbursement page, p50", "ms", less, func(r spendResult) float64 { return ms(r.pages.P50) })
	add("reimbursement page, p99", "ms", less, func(r spendResult) float64 { return ms(r.pages.P99) }).goal(15)
	add("card read, p50", "ms", less, func(r spendResult) float64 { return ms(r.cards.P50) })
	add("card read, p99", "ms", less, func(r spendResult) float64 { return ms(r.cards.P99) }).goal(3)
	add("card create", "1/s", more, func(r spendResult) float64 { return r.creates.rate() }).goal(1500)
	add("refused with 503", "", less, func(r spendResult) float64 { return float64(r.pages.Refused + r.cards.Refused + r.creates.Refused) }).goal(0)
	add("daemon, most resident", "MB", less, func(r spendResult) float64 { return r.resident / 1e6 }).goal(200)
}
