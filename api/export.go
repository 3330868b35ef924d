package api

import (
	"context"
	"net/http"
	"time"

	"spendhook/audit"
)

const (
	mediaNDJSON = "application/x-ndjson"
	exportSize  = 500
	// exportWrite is how long a client may take to read one page.
	exportWrite = 30 * time.Second
)

// exportAudit streams all entries that match the filter. It holds one page in memory, which
// counts as an answer. An error after the first byte closes the connection, since the
// status has been sent.
func (s *server) exportAudit(w http.ResponseWriter, r *http.Request, f audit.Filter) {
	f.Size = exportSize
	out := http.NewResponseController(w)
	for begun := false; ; begun = true {
		page, memory, err := s.exportPage(r, f, begun)
		if err != nil && !begun {
			s.fail(w, r, err)
			return
		}
		if err == nil {
			// The server's own time-out is for answers of a known size; not every
			// writer has one to set.
			_ = out.SetWriteDeadline(s.opts.Now().Add(exportWrite))
			err = writeLines(w, page.Items, begun)
		}
		memory.shrinkTo(0)
		if err != nil {
			if r.Context().Err() == nil {
				s.opts.Logger.WarnContext(r.Context(), "audit export cut off", "exception.message", err)
			}
			panic(http.ErrAbortHandler)
		}
		if page.Next == "" {
			return
		}
		_ = out.Flush() // an error shows at the next write
		s.delayEnd(r.Context(), w)
		f.Cursor = page.Next
	}
}

// exportPage reserves the memory of a page and reads the page. An export that has begun is not
// refused for the rate of its account.
func (s *server) exportPage(r *http.Request, f audit.Filter, begun bool) (page audit.Page, memory *reservation, err error) {
	if begun {
		c := callerOf(r)
		memory, err = s.answers.reserve(r.Context(), account(c), c.answerBytes, s.opts.Timeout)
	} else {
		memory, err = s.reserve(r)
	}
	if err != nil {
		return audit.Page{}, nil, err
	}
	if page, err = within(r.Context(), s.opts.Timeout, s.opts.Audit.List, f); err != nil {
		memory.shrinkTo(0)
		return audit.Page{}, nil, err
	}
	return page, memory, nil
}

// within calls do with a context that ends after timeout.
func within[Q, T any](ctx context.Context, timeout time.Duration, do func(context.Context, Q) (T, error), q Q) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return do(ctx, q)
}

func writeLines(w http.ResponseWriter, items []audit.Entry, begun bool) error {
	if !begun {
		w.Header().Set("Content-Type", mediaNDJSON)
		w.WriteHeader(http.StatusOK)
	}
	for _, e := range items {
		line, err := encode(shownEntry(e))
		if err != nil {
			return err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}
