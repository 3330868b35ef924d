package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"spendhook/audit"
	"spendhook/internal/terminal"
	"spendhook/storage"
	"spendhook/storage/importer"
)

type importCmd struct {
	storageFlags

	Files []string `arg:"" name:"file" help:"NDJSON files, read in this order; '-' is standard input. The field kind of each line is company, user, card, location, reimbursement or statement."`
}

// Run imports the files, and fails when any line was refused. A line with a known uuid replaces
// the stored object, so an import may be run again.
func (c *importCmd) Run(ctx context.Context, term *stdio) error {
	sources, err := openSources(c.Files, term.In)
	defer func() {
		for _, source := range sources {
			_ = source.in.Close()
		}
	}()
	if err != nil {
		return err
	}
	store, err := c.open(ctx)
	if err != nil {
		return err
	}
	var total importer.Report
	for _, source := range sources {
		report, failure := source.importInto(ctx, store, term)
		total.Imported += report.Imported
		total.Refused += report.Refused
		if failure != nil {
			err = fmt.Errorf("%s, after line %d: %w", source.name, report.Lines, failure)
			break
		}
	}
	fmt.Fprintf(term.Out, "imported %d  refused %d\n", total.Imported, total.Refused)
	if err == nil && total.Refused > 0 {
		err = fmt.Errorf("%d of %d lines were refused", total.Refused, total.Imported+total.Refused)
	}
	return errors.Join(err, store.Close(), c.record(ctx, term, total, err))
}

// record writes an audit entry if lines were imported.
func (c *importCmd) record(ctx context.Context, term *stdio, total importer.Report, failure error) error {
	if total.Imported == 0 && failure == nil {
		return nil
	}
	e := audit.Entry{
		Action: "spend.import", Target: audit.Target{Kind: "file", IDs: c.Files},
		Detail: fmt.Sprintf("imported %d, refused %d", total.Imported, total.Refused),
	}
	if failure != nil {
		e.Outcome = audit.Unknown // some lines may be there that are not counted
	}
	return c.configFlags.record(ctx, term, e)
}

// source is one input of an import; size is 0 when it is unknown.
type source struct {
	name string
	in   io.ReadCloser
	size int64
}

// openSources opens all of them, so that a mistyped name stops the import
// before it has begun. With an error it returns those that are open.
func openSources(names []string, stdin io.Reader) (sources []source, err error) {
	for _, name := range names {
		in, size, err := terminal.Open(name, stdin)
		if err != nil {
			return sources, err
		}
		sources = append(sources, source{name: name, in: in, size: size})
	}
	return sources, nil
}

func (s source) importInto(ctx context.Context, store *storage.DB, term *stdio) (importer.Report, error) {
	bar := terminal.NewProgress(term.Err, "lines", s.size, time.Now)
	defer bar.Finish()
	in := importer.Importer{
		DB: store,
		Refused: func(r importer.Refusal) {
			bar.Finish()
			fmt.Fprintf(term.Err, "%s: line %d: %s\n", s.name, r.Line, terminal.Escape(r.Reason, ""))
		},
		Progress: func(r importer.Report) { bar.Update(r.Lines, r.Bytes) },
	}
	return in.Run(ctx, s.in)
}
