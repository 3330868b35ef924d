package storage

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"
)

const (
	batchTimeout = time.Minute
	// maxTurn is how long a transaction of an import may keep others that write
	// to the same SQLite file waiting: batches shrink to it.
	maxTurn = 200 * time.Millisecond
)

// Importer loads spend data from lines of JSON, one object a line with a kind
// of company, user, card, location, reimbursement or statement. A line with a
// known uuid replaces what the database has. What a line refers to must stand
// before it; a reimbursement brings its requester along, as an inactive user,
// when no such user is known. It reads as a stream, in bounded memory. Others may
// read and write meanwhile: it works in short transactions and makes way between.
type Importer struct {
	Store *Store
	// Refused hears of each refused line, in order.
	Refused func(Refusal)
	// Progress hears how far the import has come, after each batch.
	Progress func(Report)
}

// Refusal names a line, from 1, and says why it was left out.
type Refusal struct {
	Line   int64
	Reason string
}

// Report counts what an import has read and done. Blank lines are Lines only.
type Report struct {
	Lines, Bytes, Imported, Refused int64
}

// Run imports until the end of r. A refused line is reported and does not stop
// it; an error does, and what the report counts as imported stays: run again
// from the start, the import comes to the same end. The error may be
// ErrUnavailable.
func (i *Importer) Run(ctx context.Context, r io.Reader) (Report, error) {
	var report Report
	pace := newPace(firstLines)
	batches := make(chan *batch, 1)
	group, joint := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return readBatches(joint, r, i.Store.opts.Now, pace, batches)
	})
	group.Go(func() error {
		for b := range batches {
			if err := i.takeTurn(joint, b, pace, &report); err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return report, fmt.Errorf("import: %w", err)
	}
	return report, i.Store.tidy(ctx, report)
}

// pace is how many lines a batch should have. It is safe for concurrent use.
type pace struct{ lines atomic.Int64 }

func newPace(lines int64) *pace {
	p := &pace{}
	p.lines.Store(lines)
	return p
}

// took learns from a transaction of n lines how many fill a turn.
func (p *pace) took(n int64, d time.Duration) {
	fit := float64(n) * float64(maxTurn) / float64(max(d, time.Millisecond))
	p.lines.Store(min(max(int64(fit), minLines), batchLines))
}

// takeTurn stores a batch once nobody else waits to write to the SQLite file.
func (i *Importer) takeTurn(ctx context.Context, b *batch, pace *pace, report *Report) error {
	if i.Store.postgres() {
		return i.store(ctx, b, report)
	}
	i.Store.turnstile().pass(ctx)
	began := i.Store.opts.Now()
	err := i.store(ctx, b, report)
	pace.took(b.lines, i.Store.opts.Now().Sub(began))
	return err
}

// store writes one batch in one transaction.
func (i *Importer) store(ctx context.Context, b *batch, report *Report) error {
	var refused []Refusal
	err := i.Store.writeWithin(ctx, batchTimeout, "store lines", func(ctx context.Context, tx bun.Tx) error {
		w := newBatchWriter(tx, i.Store.postgres())
		err := w.write(ctx, b)
		refused = w.refused
		return err
	})
	if err != nil {
		return err
	}
	refused = append(refused, b.refused...)
	slices.SortFunc(refused, func(x, y Refusal) int { return int(x.Line - y.Line) })
	report.Lines += b.lines
	report.Bytes += b.bytes
	report.Refused += int64(len(refused))
	report.Imported += b.objects - int64(len(refused))
	i.tell(refused, *report)
	return nil
}

func (i *Importer) tell(refused []Refusal, report Report) {
	for _, r := range refused {
		if i.Refused != nil {
			i.Refused(r)
		}
	}
	if i.Progress != nil {
		i.Progress(report)
	}
}

// tidyTimeout bounds the tidying of one table.
const tidyTimeout = 10 * time.Minute

// tidy lets the planner know what the tables hold now, and PostgreSQL which of
// their pages everybody sees: until it has noted that, it reads the row for every
// entry of an index that it counts.
func (s *Store) tidy(ctx context.Context, report Report) error {
	if report.Imported == 0 {
		return nil
	}
	statement := "ANALYZE ?"
	if s.postgres() {
		statement = "VACUUM (ANALYZE) ?"
	}
	for _, table := range []string{"users", "cards", "reimbursements"} {
		ctx, cancel := context.WithTimeout(ctx, tidyTimeout)
		err := s.untilItsTurn(ctx, func() error {
			_, err := s.w.ExecContext(ctx, statement, bun.Ident(table))
			return err
		})
		cancel()
		if err != nil {
			return failed("tidy "+table, err)
		}
	}
	return nil
}
