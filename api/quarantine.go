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
		page, err := s.opts.Quarantine.Quarantined(ctx, quarantine.Filter{Company: company, Size: size, Cursor: text(p.Cursor)})
		return byCursor(r, size, page.Items, page.Next, shownQuarantined), err
	})
}

// RetryQuarantined is POST /api/v1/quarantine/{id}/retry.
func (s *server) RetryQuarantined(w http.ResponseWriter, r *http.Request, id gen.QuarantinePath, p gen.RetryQuarantinedParams) {
	s.once(w, r, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decode[gen.CompanyScope](r)
		if err != nil {
			return reply{}, err
		}
		e, err := quarantined(c, id, p.CompanyUUID, in.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		c.changes(&e.Company, "quarantine", id)
		err = s.opts.Quarantine.RetryQuarantined(ctx, e)
		return reply{status: http.StatusAccepted, content: gen.QuarantineRef{ID: id, CompanyUUID: e.Company}}, err
	})
}

// DropQuarantined is DELETE /api/v1/quarantine/{id}.
func (s *server) DropQuarantined(w http.ResponseWriter, r *http.Request, id gen.QuarantinePath, p gen.DropQuarantinedParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		e, err := quarantined(c, id, p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		c.changes(&e.Company, "quarantine", id)
		return noContent(), s.opts.Quarantine.DropQuarantined(ctx, e)
	})
}

// quarantined returns the entry of a request. A malformed id is answered as not found.
func quarantined(c *caller, id string, named ...*uuid.UUID) (quarantine.Entry, error) {
	company, err := c.companyFor(named...)
	if err != nil {
		return quarantine.Entry{}, err
	}
	return dispatcher.ParseQuarantined(company, id)
}

func shownQuarantined(e quarantine.Entry) gen.QuarantineEntry {
	return gen.QuarantineEntry{
		ID: e.ID(), CompanyUUID: e.Company, EventID: e.EventID, SubscriberUUID: e.Subscriber, QuarantinedAt: e.At,
	}
}
