package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spendhook/audit"
	"spendhook/internal/terminal"
	"spendhook/storage"
	"spendhook/storage/importer"
)

type importCmd struct {
	configFlags

	Files []string `arg:"" name:"file" type:"existingfile" help:"NDJSON files, read in this order; '-' is standard input. The field kind of each line is company, user, card, location, reimbursement or statement."`
}

// Run imports the files. It fails if a line was refused. A line with a known uuid replaces the
// stored object, so an import may be run again.
func (c *importCmd) Run(ctx context.Context, term *stdio) error {
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	var total importer.Report
	for _, name := range c.Files {
		report, failure := importFile(ctx, store, name, term)
		total.Imported += report.Imported
		total.Refused += report.Refused
		if failure != nil {
			err = fmt.Errorf("%s, after line %d: %w", name, report.Lines, failure)
			break
		}
	}
	fmt.Fprintf(term.Out, "imported %d  refused %d\n", total.Imported, total.Refused)
	if err == nil && total.Refused > 0 {
		err = fmt.Errorf("%d of %d lines were refused", total.Refused, total.Imported+total.Refused)
	}
	return errors.Join(err, store.Close(), c.recordImport(ctx, term, total, err))
}

// recordImport writes an audit entry if lines were imported.
func (c *importCmd) recordImport(ctx context.Context, term *stdio, total importer.Report, failure error) error {
	if total.Imported == 0 && failure == nil {
		return nil
	}
	e := audit.Entry{
		Action: "spend.import", Target: audit.Target{Kind: "file", IDs: c.Files},
		Detail: fmt.Sprintf("imported %d, refused %d", total.Imported, total.Refused),
	}
	if failure != nil {
		e.Outcome = audit.Unknown // more lines than the counted ones may be imported
	}
	return c.record(ctx, term, e)
}

func importFile(ctx context.Context, store *storage.DB, name string, term *stdio) (importer.Report, error) {
	file, size, err := terminal.Open(name, term.In)
	if err != nil {
		return importer.Report{}, err
	}
	defer file.Close()
	bar := terminal.NewProgress(term.Err, "lines", size, time.Now)
	defer bar.Finish()
	in := importer.Importer{
		DB: store,
		Refused: func(r importer.Refusal) {
			bar.Finish()
			fmt.Fprintf(term.Err, "%s: line %d: %s\n", name, r.Line, terminal.Escape(r.Reason, ""))
		},
		Progress: func(r importer.Report) { bar.Update(r.Lines, r.Bytes) },
	}
	return in.Run(ctx, file)
}
