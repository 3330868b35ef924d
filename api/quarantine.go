package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher"
	"spendhook/dispatcher/workqueue/quarantine"
)

// ListQuarantine is GET /api/v1/quarantine.
func (s *server) ListQuarantine(w http.ResponseWriter, r *http.Request, p gen.ListQuarantineParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		size := or(p.Size, defaultSize)
		company, err := c.companyOfList(p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		page, err := s.opts.Dispatcher.Quarantine.List(ctx, quarantine.Filter{Company: company, Size: size, Cursor: textOf(p.Cursor)})
		return byCursor(r, size, page.Items, page.Next, shownQuarantined), err
	})
}

// RetryQuarantined is POST /api/v1/quarantine/{id}/retry.
func (s *server) RetryQuarantined(w http.ResponseWriter, r *http.Request, id gen.QuarantinePath, p gen.RetryQuarantinedParams) {
	withBody(s.once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, _ gen.CompanyScope) (reply, error) {
		e, err := dispatcher.ParseQuarantined(company, id)
		if err != nil {
			return reply{}, err
		}
		c.auditTarget(&company, "quarantine", id)
		err = s.opts.Dispatcher.Quarantine.Retry(ctx, e)
		return reply{status: http.StatusAccepted, content: gen.QuarantineRef{ID: id, CompanyUUID: company}}, err
	})
}

// DropQuarantined is DELETE /api/v1/quarantine/{id}.
func (s *server) DropQuarantined(w http.ResponseWriter, r *http.Request, id gen.QuarantinePath, p gen.DropQuarantinedParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		e, err := dispatcher.ParseQuarantined(company, id)
		if err != nil {
			return reply{}, err
		}
		callerOf(r).auditTarget(&company, "quarantine", id)
		return noContent(), s.opts.Dispatcher.DropQuarantined(ctx, e)
	})
}

func shownQuarantined(e quarantine.Entry) gen.QuarantineEntry {
	return gen.QuarantineEntry{
		ID: e.ID(), CompanyUUID: e.Company, EventID: e.EventID, SubscriberUUID: e.Subscriber, QuarantinedAt: e.At,
	}
}
