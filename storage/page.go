package storage

import (
	"cmp"
	"strings"

	"github.com/google/uuid"
	"github.com/uptrace/bun"
)

const (
	defaultSize = 20
	maxSize     = 100
)

// Page selects one page of a list. Number counts from 0. Size 0 means 20, and more than 100
// means 100.
type Page struct {
	Number, Size int
}

// Limit returns the size of the page, with the default and the maximum applied.
func (p Page) Limit() int {
	return min(cmp.Or(p.Size, defaultSize), maxSize)
}

// Offset returns the number of rows before the page.
func (p Page) Offset() int64 { return int64(p.Number) * int64(p.Limit()) }

// Apply restricts q to the rows of the page.
func (p Page) Apply(q *bun.SelectQuery) *bun.SelectQuery {
	return q.Limit(int64(p.Limit())).Offset(p.Offset())
}

// InCompany restricts q to one company. For all companies it selects their uuids, so that
// indexes that begin with the company also serve these queries.
func InCompany(q *bun.SelectQuery, company *uuid.UUID) *bun.SelectQuery {
	if company == nil {
		return q.Where("company_uuid IN (SELECT uuid FROM companies)")
	}
	return q.Where("company_uuid = ?", Key(*company))
}

// like escapes what a pattern of LIKE … ESCAPE '!' does not take literally.
var like = strings.NewReplacer("!", "!!", "%", "!%", "_", "!_")

// LikeText returns text as a part of a pattern for LIKE … ESCAPE '!' that matches it literally.
func LikeText(text string) string { return like.Replace(text) }

// WhereEqual restricts q to the rows whose column equals the value in upper case. The value ""
// does not restrict q.
func WhereEqual(q *bun.SelectQuery, column, value string) *bun.SelectQuery {
	if value == "" {
		return q
	}
	return q.Where("? = ?", bun.Ident(column), strings.ToUpper(value))
}
