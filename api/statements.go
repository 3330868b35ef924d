package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/storage/billing"
)

// GetCurrentStatement is GET /api/v2/billing-statements/current.
func (s *server) GetCurrentStatement(w http.ResponseWriter, r *http.Request, p gen.GetCurrentStatementParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		statement, err := s.opts.Statements.Current(ctx, company)
		return ok(shownStatement(statement)), err
	})
}

// GetStatement is GET /api/v2/billing-statements/{month}/{year}.
func (s *server) GetStatement(w http.ResponseWriter, r *http.Request, month gen.MonthPath, year gen.YearPath, p gen.GetStatementParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		statement, err := s.opts.Statements.OfMonth(ctx, company, month, year)
		return ok(shownStatement(statement)), err
	})
}

func shownStatement(s billing.Statement) gen.Statement {
	return gen.Statement{
		Month: s.Month, Year: s.Year, Status: gen.StatementStatus(s.Status), StatementUUID: s.UUID,
		TotalAmount: money(s.TotalAmount()), Currency: s.Currency, ClosingDate: s.ClosingDate,
	}
}
