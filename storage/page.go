package storage

import (
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"spendhook/internal/invalid"
)

const (
	defaultSize = 20
	maxSize     = 100
	maxList     = 500
)

// Page names one page of a list. Number counts from 0; Size 0 means 20, and
// more than 100 means 100.
type Page struct {
	Number, Size int
}

// Limit is the size that is really used.
func (p Page) Limit() int {
	if p.Size == 0 {
		return defaultSize
	}
	return min(p.Size, maxSize)
}

func (p Page) offset() int64 { return int64(p.Number) * int64(p.Limit()) }

func (p Page) apply(q *bun.SelectQuery) *bun.SelectQuery {
	return q.Limit(int64(p.Limit())).Offset(p.offset())
}

func (p Page) check(e *invalid.Error) {
	if p.Number < 0 {
		e.Add("page", "INVALID", "must be 0 or more")
	}
	if p.Size < 0 {
		e.Add("size", "INVALID", "must be 1 or more")
	}
}

// inCompany keeps to one company, or names all of them, so that indexes that
// begin with the company serve both.
func inCompany(q *bun.SelectQuery, company *uuid.UUID) *bun.SelectQuery {
	if company == nil {
		return q.Where("company_uuid IN (SELECT uuid FROM companies)")
	}
	return q.Where("company_uuid = ?", key(*company))
}

// checkOneOf reports a value outside of a closed set; any letter case will do.
func checkOneOf(e *invalid.Error, field, value string, allowed ...string) {
	for _, a := range allowed {
		if strings.EqualFold(a, value) {
			return
		}
	}
	e.Add(field, "INVALID", "must be one of %s", strings.Join(allowed, ", "))
}
