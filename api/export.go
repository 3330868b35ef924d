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
	exportPage = 500
	// exportWrite is how long a client may take to read one page.
	exportWrite = 30 * time.Second
)

// exportAudit streams all that passes the filter, a page in memory at a time, which is
// taken from that of answers. Once the answer has begun an error can only be told by
// cutting it off.
func (s *server) exportAudit(w http.ResponseWriter, r *http.Request, f audit.Filter) {
	memory, err := s.board(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer memory.keep(0)
	f.Size = exportPage
	out, begun := http.NewResponseController(w), false
	for {
		page, err := s.auditPage(r.Context(), f)
		if err != nil && !begun {
			s.fail(w, r, err)
			return
		}
		if err == nil {
			// The server's own time-out is for answers of a known size; not every
			// writer has one to set.
			_ = out.SetWriteDeadline(s.opts.Now().Add(exportWrite))
			begun, err = true, writeLines(w, page.Items, begun)
		}
		if err != nil {
			s.opts.Logger.WarnContext(r.Context(), "audit export cut off", "exception.message", err)
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
