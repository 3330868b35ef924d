package api

import (
	"math"
	"net/http"
	"net/url"
	"time"
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
	target := url.URL{Path: r.URL.Path, RawQuery: query.Encode()}
	return rep.with("Link", "<"+target.String()+`>; rel="next"`)
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
