package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"spendhook/api/client"
	"spendhook/internal/pause"
	"spendhook/internal/terminal"
)

// page identifies a page of a list, by number or by cursor.
type page struct {
	Page   *int    `maybe:""`
	Cursor *string `maybe:""`
	Size   *int    `maybe:""`
}

// listFlags are the flags of every list.
type listFlags struct {
	Size  int  `local:"" help:"Items per page, at most 100."`
	All   bool `local:"" help:"Read all pages instead of the first one."`
	Watch bool `local:"" short:"w" help:"Repeat the list every 2 s until interrupted."`
}

// watchEvery is the time between two outputs of --watch.
const watchEvery = 2 * time.Second

// list prints a list: one page, or all.
func (s *session) list(ctx context.Context, flags listFlags, t table, read readPage) error {
	if flags.Watch {
		return s.watch(ctx, func(out io.Writer) (state string, ended bool, err error) {
			items, _, err := collect(ctx, flags, read)
			return fmt.Sprint(items), false, errors.Join(err, s.output.printList(out, t, items))
		})
	}
	items, more, err := collect(ctx, flags, read)
	if err != nil {
		return err
	}
	if more && s.output.Format == "table" {
		fmt.Fprintln(s.term.Err, "There are more pages: add --all.")
	}
	return s.output.printList(s.term.Out, t, items)
}

// watch shows the output of show repeatedly, until show reports the end or ctx ends. On a terminal each output
// replaces the one before, and nothing else, as far as it has lines; elsewhere it prints each output with a new state.
func (s *session) watch(ctx context.Context, show func(io.Writer) (state string, ended bool, err error)) error {
	var last []byte
	shown := ""
	for first := true; ; first = false {
		var now bytes.Buffer
		state, ended, err := show(&now)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the command was interrupted
			}
			return err
		}
		switch {
		case terminal.Is(s.term.Out):
			fits := terminal.Fit(s.term.Out, now.Bytes())
			fmt.Fprint(s.term.Out, terminal.Replace(last, fits))
			last = fits
		case first || state != shown:
			fmt.Fprintf(s.term.Out, "%s", now.Bytes())
		}
		shown = state
		if ended || !pause.For(ctx, watchEvery) {
			return nil
		}
	}
}

// collect reads one page, or all pages with --all. more reports whether there are further pages.
func collect(ctx context.Context, flags listFlags, read readPage) (all []node, more bool, err error) {
	at := page{}
	if flags.Size > 0 {
		at.Size = &flags.Size
	} else if flags.All {
		largest := 100
		at.Size = &largest
	}
	for items, err := range each(ctx, at, read, &more) {
		if err != nil {
			return nil, false, err
		}
		if all = append(all, items...); !flags.All {
			break
		}
	}
	return all, more, nil
}

// each reads page after page. more is whether there are further ones.
func each(ctx context.Context, at page, read readPage, more *bool) iter.Seq2[[]node, error] {
	return func(yield func([]node, error) bool) {
		have := 0
		for *more = true; *more; {
			resp, err := read(ctx, at)
			text, err := readBody(resp, err)
			if err != nil {
				yield(nil, err)
				return
			}
			whole, err := parse(text)
			if err != nil {
				yield(nil, err)
				return
			}
			items := whole.items()
			have += len(items)
			*more = at.next(whole, resp.Header, have)
			if !yield(items, nil) {
				return
			}
		}
	}
}

// pages returns a readPage for an operation that takes a page and filters.
func pages[P any](s *session, read func(context.Context, *P, ...client.RequestEditorFn) (*http.Response, error), filters ...any) readPage {
	return func(ctx context.Context, at page) (*http.Response, error) {
		return read(ctx, fields[P](s, append(filters, at)...))
	}
}

// next moves to the next page, and reports whether there is one.
func (p *page) next(whole node, h http.Header, have int) bool {
	if cursor := whole.at("nextCursor"); cursor != "" {
		p.Cursor = &cursor
		return true
	}
	number := 1
	if p.Page != nil {
		number += *p.Page
	}
	p.Page = &number
	if pages, err := strconv.Atoi(whole.at("totalPages")); err == nil {
		return number < pages
	}
	total, err := strconv.Atoi(h.Get("X-Total-Count"))
	return err == nil && have < total && h.Get("X-Page-Size") != ""
}
