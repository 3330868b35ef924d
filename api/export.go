package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"spendhook/audit"
)

const (
	mediaLines = "application/x-ndjson"
	exportSize = 500
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
		memory.keep(0)
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
		s.hold(r.Context(), w)
		f.Cursor = page.Next
	}
}

// exportPage reads one page, and takes the memory for it. An export that has begun is not
// refused for what its account owes.
func (s *server) exportPage(r *http.Request, f audit.Filter, begun bool) (page audit.Page, memory *share, err error) {
	if begun {
		c := callerOf(r)
		memory, err = s.flight.take(r.Context(), account(c), c.bytes, s.opts.Timeout)
	} else {
		memory, err = s.board(r)
	}
	if err != nil {
		return audit.Page{}, nil, err
	}
	if page, err = s.auditPage(r.Context(), f); err != nil {
		memory.keep(0)
		return audit.Page{}, nil, err
	}
	return page, memory, nil
}

func (s *server) auditPage(ctx context.Context, f audit.Filter) (audit.Page, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	return s.opts.Audit.List(ctx, f)
}

func writeLines(w http.ResponseWriter, items []audit.Entry, begun bool) error {
	if !begun {
		w.Header().Set("Content-Type", mediaLines)
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

// wantsLines reports whether an Accept header asks for NDJSON by its name, and
// not for JSON too.
func wantsLines(accept string) bool {
	lines := false
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case mediaLines:
			lines = !refused(params)
		case mediaJSON:
			return false
		}
	}
	return lines
}
