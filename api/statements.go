package api

import (
	"context"

	"spendhook/api/gen"
	"spendhook/storage/billing"
)

// GetCurrentStatement is GET /api/v2/billing-statements/current.
func (s *server) GetCurrentStatement(ctx context.Context, q *request) (reply, error) {
	statement, err := s.opts.Statements.Current(ctx, q.company)
	return ok(shownStatement(statement)), err
}

// GetStatement is GET /api/v2/billing-statements/{month}/{year}.
func (s *server) GetStatement(ctx context.Context, q *request, month gen.MonthPath, year gen.YearPath) (reply, error) {
	statement, err := s.opts.Statements.OfMonth(ctx, q.company, month, year)
	return ok(shownStatement(statement)), err
}

func shownStatement(s billing.Statement) gen.Statement {
	return gen.Statement{
		Month: s.Month, Year: s.Year, Status: gen.StatementStatus(s.Status), StatementUUID: s.UUID,
		TotalAmount: money(s.TotalAmount()), Currency: s.Currency, ClosingDate: s.ClosingDate,
	}
}
