package api

import (
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"spendhook/storage"
)

const (
	defaultSize = 20
	maxSize     = 100
)

// sizeOf is the page size to use: 1 to 100, a larger one is taken as 100.
func sizeOf(size *int) (int, error) {
	switch {
	case size == nil:
		return defaultSize, nil
	case *size < 1:
		return 0, fieldProblem("size", "INVALID", "must be at least 1")
	default:
		return min(*size, maxSize), nil
	}
}

// pageOf is the zero-based page number.
func pageOf(page *int) (int, error) {
	switch {
	case page == nil:
		return 0, nil
	case *page < 0 || *page > math.MaxInt32:
		return 0, fieldProblem("page", "INVALID", "must be from 0 to %d", math.MaxInt32)
	default:
		return *page, nil
	}
}

func pageAndSize(page, size *int) (p storage.Page, err error) {
	if p.Number, err = pageOf(page); err != nil {
		return p, err
	}
	p.Size, err = sizeOf(size)
	return p, err
}

// pages is how many pages of that size hold total items.
func pages(total int64, p storage.Page) int64 {
	size := int64(p.Limit())
	return (total + size - 1) / size
}

// paged adds what leads through the pages of a bare array: X-Total-Count, and
// the RFC 8288 links beside others. A nil page means the whole list.
func paged(rep reply, r *http.Request, page *storage.Page, total int64, others ...string) reply {
	links := append(others, pageLinks(r.URL, page, total)...)
	return rep.with("X-Total-Count", strconv.FormatInt(total, 10)).with("Link", strings.Join(links, ", "))
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

// linked adds the RFC 8288 link to the next page, when there is one.
func linked(rep reply, r *http.Request, next string) reply {
	if next == "" {
		return rep
	}
	query := r.URL.Query()
	query.Set("cursor", next)
	return rep.with("Link", link(r.URL, query, "next"))
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
