package api

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events/history"
	"spendhook/storage"
)

// The functions of this file answer all lists. A page has at most maxSize items and pageBytes. It is
// encoded while it is written.

const (
	defaultSize = 20
	maxSize     = 100
	pageBytes   = history.PageBytes
	// itemBytes is the maximum size of an item of a full page. Only events may be larger,
	// since their pages are bounded by bytes too.
	itemBytes = pageBytes / maxSize
)

// pageOf returns the requested page of a list with numbered pages.
func pageOf(page, size *int) storage.Page {
	return storage.Page{Number: or(page, 0), Size: or(size, defaultSize)}
}

// cursorPage is one page of a list that continues at a cursor.
type cursorPage[T any] struct {
	Content    []T    `json:"content"`
	NextCursor string `json:"nextCursor,omitzero"`
	Partial    bool   `json:"partial,omitzero"` // the page ends before it is full, and the list continues
}

// byCursor answers one page of a list that continues at next.
func byCursor[I, T any](size int, items []I, next string, show func(I) T) reply {
	return listed(cursorPage[T]{convertAll(items, show), next, next != "" && len(items) < size}, size, len(items))
}

// numberedPage is one page of a list whose pages are numbered.
type numberedPage[T any] struct {
	Content       []T   `json:"content"`
	Number        int   `json:"number"`
	Size          int   `json:"size"`
	TotalElements int64 `json:"totalElements"`
	TotalPages    int64 `json:"totalPages"`
}

// byNumber answers one page of a list of total items.
func byNumber[I, T any](page storage.Page, items []I, total int64, show func(I) T) reply {
	content := numberedPage[T]{convertAll(items, show), page.Number, page.Size, total, pages(total, page)}
	return counted(listed(content, page.Size, len(items)), total)
}

// inArray is byNumber for a list that is a bare array.
func inArray[I, T any](q *request, page storage.Page, items []I, total int64, show func(I) T) reply {
	return paged(listed(convertAll(items, show), page.Size, len(items)), q, &page, total)
}

func convertAll[I, T any](items []I, convert func(I) T) []T {
	converted := make([]T, len(items))
	for i, item := range items {
		converted[i] = convert(item)
	}
	return converted
}

// same shows items as they are.
func same[T any](item T) T { return item }

// listed is the answer of a page with that many items.
func listed(content any, size, items int) reply {
	return streamed(content, int64(items)*itemBytes).with("X-Page-Size", strconv.Itoa(size))
}

// parts are the items of a long list. The list is read and written in parts, so that only one part is
// in memory.
type parts[T any] iter.Seq2[T, error]

// inParts returns the items, followed by the items of next until next returns none. next is called while
// the answer is written.
func inParts[I, T any](s *server, q *request, items []I, show func(I) T, next func(ctx context.Context) ([]I, error)) parts[T] {
	return func(yield func(T, error) bool) {
		for len(items) > 0 {
			for _, item := range items {
				if !yield(show(item), nil) {
					return
				}
			}
			var err error
			if items, err = nextPart(s, q, next); err != nil {
				var none T
				yield(none, err)
				return
			}
		}
	}
}

// nextPart extends the time to write the answer, and pauses when the account reads above the rate. The
// time-outs of the server and of the request are too short for a long list.
func nextPart[I any](s *server, q *request, next func(ctx context.Context) ([]I, error)) ([]I, error) {
	s.delayEnd(q.sent.Context(), q.w)
	_ = http.NewResponseController(q.w).SetWriteDeadline(s.opts.Now().Add(partTime)) // not every writer has a deadline
	ctx, cancel := context.WithTimeout(q.sent.Context(), s.opts.Timeout)
	defer cancel()
	return next(ctx)
}

// partTime is how long a client may take to read a part.
const partTime = 30 * time.Second

// MarshalJSONTo writes the items as an array.
func (p parts[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginArray); err != nil {
		return err
	}
	if err := p.encode(enc); err != nil {
		return err
	}
	return enc.WriteToken(jsontext.EndArray)
}

// lines writes the items as NDJSON.
func (p parts[T]) lines(w io.Writer) error { return p.encode(jsontext.NewEncoder(w, encoding)) }

func (p parts[T]) encode(enc *jsontext.Encoder) error {
	for item, err := range p {
		if err == nil {
			err = json.MarshalEncode(enc, item)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pages returns the number of pages for total items.
func pages(total int64, p storage.Page) int64 {
	size := int64(p.Limit())
	return (total + size - 1) / size
}

// counted adds X-Total-Count.
func counted(rep reply, total int64) reply {
	return rep.with("X-Total-Count", strconv.FormatInt(total, 10))
}

// paged adds X-Total-Count, and the RFC 8288 links to other pages after those that the answer has.
// A nil page means the whole list.
func paged(rep reply, q *request, page *storage.Page, total int64) reply {
	links := append(slices.Clone(q.w.Header()["Link"]), pageLinks(q.sent.URL, page, total)...)
	rep = counted(rep, total)
	if all := joined(links); all != "" {
		rep = rep.with("Link", all)
	}
	return rep
}

// maxLinks bounds the header of the links in bytes: many clients read no line of more than 8 KB.
const maxLinks = 8000

// joined is the header of the links. When that is too long, it is the header of the next one, or "" if that
// is too long, too.
func joined(links []string) string {
	if all := strings.Join(links, ", "); len(all) <= maxLinks {
		return all
	}
	for _, l := range links {
		if strings.HasSuffix(l, `; rel="next"`) && len(l) <= maxLinks {
			return l
		}
	}
	return ""
}

func pageLinks(at *url.URL, page *storage.Page, total int64) []string {
	if page == nil {
		return []string{link(at, at.Query(), "first"), link(at, at.Query(), "last")}
	}
	last, number := max(pages(total, *page)-1, 0), int64(page.Number)
	to := func(n int64, rel string) string {
		query := at.Query()
		query.Set("page", strconv.FormatInt(n, 10))
		query.Set("size", strconv.Itoa(page.Limit()))
		return link(at, query, rel)
	}
	links := []string{to(0, "first")}
	if number > 0 {
		links = append(links, to(min(number-1, last), "prev"))
	}
	if number < last {
		links = append(links, to(number+1, "next"))
	}
	return append(links, to(last, "last"))
}

// link is an RFC 8288 link to the same path with another query.
func link(at *url.URL, query url.Values, rel string) string {
	target := url.URL{Path: at.Path, RawQuery: query.Encode()}
	return "<" + target.String() + `>; rel="` + rel + `"`
}

// checkPeriod refuses a period that ends before it starts.
func checkPeriod(from, to *time.Time) error {
	if from != nil && to != nil && to.Before(*from) {
		return fieldProblem("to", "INVALID", "must not be before from")
	}
	return nil
}

// or returns the value of a parameter, or its default.
func or[T any](given *T, otherwise T) T {
	if given == nil {
		return otherwise
	}
	return *given
}

func textOf[T ~string](given *T) string { return string(or(given, "")) }
