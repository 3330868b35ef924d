package api

import (
	"context"
	"net/http"

	"spendhook/api/gen"
	"spendhook/storage/companies"
)

// ListCompanies is GET /api/v1/companies.
func (s *server) ListCompanies(ctx context.Context, _ *request, p gen.ListCompaniesParams) (reply, error) {
	size := or(p.Size, defaultSize)
	list, next, err := s.opts.Companies.List(ctx, companies.Filter{Search: textOf(p.Search), Cursor: textOf(p.Cursor), Size: size})
	return byCursor(size, list, next, shownCompany), err
}

// GetCompany is GET /api/v1/companies/{uuid}.
func (s *server) GetCompany(ctx context.Context, _ *request, id gen.CompanyPath) (reply, error) {
	c, err := s.opts.Companies.Get(ctx, id)
	return ok(shownCompany(c)), err
}

// NameCompany is PUT /api/v1/companies/{uuid}.
func (s *server) NameCompany(ctx context.Context, q *request, id gen.CompanyPath, in gen.CompanyInput) (reply, error) {
	q.auditTarget(&id, "company", id.String())
	c, added, err := s.opts.Companies.Put(ctx, companies.Company{UUID: id, Name: in.Name})
	status := http.StatusOK
	if added {
		status = http.StatusCreated
	}
	return reply{status: status, content: shownCompany(c)}, err
}

func shownCompany(c companies.Company) gen.Company { return gen.Company{UUID: c.UUID, Name: c.Name} }
