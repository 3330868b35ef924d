// Package importer writes spend data, as lines of JSON, into the database, and
// invents some.
package importer

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"spendhook/internal/clock"
	"spendhook/storage"
	"spendhook/storage/column"
)

const (
	batchTimeout = time.Minute
	// maxTurn is the intended duration of one transaction of an import, which blocks other
	// writers of the SQLite file. The size of the batches is adapted to it.
	maxTurn = 200 * time.Millisecond
)

// Importer loads spend data from lines of JSON, one object a line with a kind
// of company, user, card, location, reimbursement or statement. A line with a
// known uuid replaces what the database has. What a line refers to must stand
// before it; a reimbursement brings its requester along, as an inactive user,
// when no such user is known. It reads as a stream, in bounded memory. Other processes
// may read and write meanwhile: transactions are short, and waiting writers go first.
type Importer struct {
	DB  *storage.DB      // required
	Now func() time.Time // nil: the real clock
	// Refused is called for each refused line, in order.
	Refused func(Refusal)
	// Progress is called after each batch.
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
// storage.ErrUnavailable.
func (i *Importer) Run(ctx context.Context, r io.Reader) (Report, error) {
	var report Report
	pace := &pace{}
	pace.lines.Store(firstLines)
	batches := make(chan *batch, 1)
	group, joint := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return readBatches(joint, r, pace, batches)
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
	if report.Imported == 0 {
		return report, nil
	}
	return report, i.DB.Analyze(ctx, "users", "cards", "reimbursements")
}

// pace is how many lines a batch should have. It is safe for concurrent use.
type pace struct{ lines atomic.Int64 }

// took adapts the batch size to the duration of a transaction of n lines.
func (p *pace) took(n int64, d time.Duration) {
	fit := float64(n) * float64(maxTurn) / float64(max(d, time.Millisecond))
	p.lines.Store(min(max(int64(fit), minLines), batchLines))
}

// takeTurn stores a batch once no other writer waits for the SQLite file.
func (i *Importer) takeTurn(ctx context.Context, b *batch, pace *pace, report *Report) error {
	if !i.DB.MakeWay(ctx) {
		return i.store(ctx, b, report)
	}
	began := clock.Or(i.Now)()
	err := i.store(ctx, b, report)
	pace.took(b.lines, clock.Or(i.Now)().Sub(began))
	return err
}

// store writes one batch in one transaction.
func (i *Importer) store(ctx context.Context, b *batch, report *Report) error {
	var refused []Refusal
	err := i.DB.WriteWithin(ctx, batchTimeout, "store lines", func(ctx context.Context, tx bun.Tx) error {
		w := &batchWriter{tx: tx, now: clock.Or(i.Now)(), touched: map[column.Key]bool{}}
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
