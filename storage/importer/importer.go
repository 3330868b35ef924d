// Package importer imports spend data from lines of JSON into the database, and generates demo data.
package importer

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"spendhook/internal/clock"
	"spendhook/internal/pause"
	"spendhook/storage"
)

const (
	batchTimeout = time.Minute
	// pauseForOthers is the pause after a transaction in SQLite, which admits one writing transaction at
	// a time. Other processes, which try every millisecond, can write during the pause.
	pauseForOthers = 10 * time.Millisecond
)

// Importer loads spend data from lines of JSON, one object a line of the kind company, user, card,
// location, reimbursement or statement. A line with a known uuid replaces the object in the database. A
// line must come after the lines that it refers to. If the requester of a reimbursement is no known
// user, the import adds an inactive user. The import reads a stream in bounded memory. Other processes
// can read and write meanwhile, because transactions are short, with pauses between them.
type Importer struct {
	DB  *storage.DB      // required
	Now func() time.Time // nil means time.Now
	// Refused is called for each refused line, in order.
	Refused func(Refusal)
	// Progress is called after each batch.
	Progress func(Report)
}

// Refusal is a line that was not imported.
type Refusal struct {
	Line   int64 // counted from 1
	Reason string
}

// Report counts the lines of an import. Blank lines are counted in Lines only.
type Report struct {
	Lines, Bytes, Imported, Refused int64
}

// Run imports all lines of r. It reports a refused line and continues. An error ends the import: the
// imported lines of the report stay in the database, and the import can be repeated from the start.
// The error may be storage.ErrUnavailable.
func (i *Importer) Run(ctx context.Context, r io.Reader) (Report, error) {
	var report Report
	batches := make(chan *batch, 1)
	group, joint := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return readBatches(joint, r, batches)
	})
	group.Go(func() error {
		for b := range batches {
			if err := i.store(joint, b, &report); err != nil {
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

// store writes one batch in one transaction.
func (i *Importer) store(ctx context.Context, b *batch, report *Report) error {
	var refused []Refusal
	exclusive := false // no other process could write during the transaction
	err := i.DB.WriteWithin(ctx, batchTimeout, "store lines", func(ctx context.Context, tx bun.Tx) error {
		w := &batchWriter{tx: tx, now: clock.Or(i.Now)(), touched: map[storage.Key]bool{}}
		err := w.write(ctx, b)
		refused, exclusive = w.refused, !storage.IsPostgres(tx)
		return err
	})
	if err != nil {
		return err
	}
	if exclusive {
		pause.For(ctx, pauseForOthers)
	}
	refused = append(refused, b.refused...)
	slices.SortFunc(refused, func(x, y Refusal) int { return int(x.Line - y.Line) })
	report.Lines += b.lines
	report.Bytes += b.bytes
	report.Refused += int64(len(refused))
	report.Imported += b.objects - int64(len(refused))
	i.notify(refused, *report)
	return nil
}

func (i *Importer) notify(refused []Refusal, report Report) {
	for _, r := range refused {
		if i.Refused != nil {
			i.Refused(r)
		}
	}
	if i.Progress != nil {
		i.Progress(report)
	}
}
