// Package billing reads the billing statements of companies, one for each month.
package billing

import (
	"context"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"
	"github.com/uptrace/bun"

	"spendhook/internal/calendar"
	"spendhook/internal/invalid"
	"spendhook/internal/money"
	"spendhook/storage"
)

const (
	minYear = 2000
	maxYear = 2100
)

// Statuses are the statuses of a statement. The list is read-only.
var Statuses = []string{"OPEN", "CLOSED"}

// Statement is the billing statement of one month: section 2.6 of the
// interface specification.
type Statement struct {
	bun.BaseModel `bun:"table:statements,alias:s"`

	UUID        uuid.UUID     `bun:"uuid,pk"`
	Year        int           `bun:"year"`
	Month       int           `bun:"month"`
	Status      string        `bun:"status"`
	Total       int64         `bun:"total"` // in minor units
	Currency    string        `bun:"currency"`
	ClosingDate calendar.Date `bun:"closing_day"`
}

// TotalAmount returns the exact total.
func (s Statement) TotalAmount() decimal.Decimal { return money.FromMinor(s.Total, s.Currency) }

// Store reads the billing statements of a database. It is safe for concurrent use. Every
// method returns storage.ErrUnavailable, wrapped, when the database is unreachable or too slow.
type Store struct{ db *storage.DB }

// New returns the Store of a database.
func New(db *storage.DB) *Store { return &Store{db: db} }

// Current reads the latest OPEN statement of the company, or returns storage.ErrNotFound.
func (s *Store) Current(ctx context.Context, company uuid.UUID) (Statement, error) {
	return s.statement(ctx, "read current statement", func(q *bun.SelectQuery) *bun.SelectQuery {
		return q.Where("company_uuid = ?", storage.Key(company)).Where("status = 'OPEN'").OrderExpr("year DESC, month DESC").Limit(1)
	})
}

// OfMonth reads the company's statement of a month and year, or returns storage.ErrNotFound.
func (s *Store) OfMonth(ctx context.Context, company uuid.UUID, month, year int) (Statement, error) {
	return s.statement(ctx, "read statement", func(q *bun.SelectQuery) *bun.SelectQuery {
		return q.Where("company_uuid = ?", storage.Key(company)).Where("year = ?", year).Where("month = ?", month)
	})
}

// CheckMonth reports a month outside of 1..12 or a year outside of 2000..2100.
func CheckMonth(e *invalid.Error, month, year int) {
	if month < 1 || month > 12 {
		e.Add("month", "INVALID", "must be 1 to 12")
	}
	if year < minYear || year > maxYear {
		e.Add("year", "INVALID", "must be %d to %d", minYear, maxYear)
	}
}

func (s *Store) statement(ctx context.Context, op string, where func(*bun.SelectQuery) *bun.SelectQuery) (row Statement, err error) {
	err = s.db.Query(ctx, op, func(ctx context.Context, db bun.IDB) error {
		return where(db.NewSelect().Model(&row)).Scan(ctx)
	})
	return row, err
}
