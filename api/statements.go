package api

import (
	"context"
	"net/http"

	"spendhook/api/gen"
	"spendhook/storage/billing"
)

// GetCurrentStatement is GET /api/v2/billing-statements/current.
func (s *server) GetCurrentStatement(w http.ResponseWriter, r *http.Request, p gen.GetCurrentStatementParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.companyFor(p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		statement, err := s.opts.Statements.Current(ctx, company)
		return ok(shownStatement(statement)), err
	})
}

// GetStatement is GET /api/v2/billing-statements/{month}/{year}.
func (s *server) GetStatement(w http.ResponseWriter, r *http.Request, month gen.MonthPath, year gen.YearPath, p gen.GetStatementParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.companyFor(p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
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
