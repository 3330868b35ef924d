package api

import (
	"context"

	"spendhook/api/gen"
	"spendhook/dispatcher/workqueue/quarantine"
)

// ListQuarantine is GET /api/v1/quarantine.
func (s *server) ListQuarantine(ctx context.Context, q *request, p gen.ListQuarantineParams) (reply, error) {
	f := quarantine.Filter{Company: q.companies, Size: or(p.Size, defaultSize), Cursor: textOf(p.Cursor)}
	page, err := s.opts.Dispatcher.Quarantine.List(ctx, f)
	return byCursor(f.Size, page.Items, page.Next, shownQuarantined), err
}

// RetryQuarantined is POST /api/v1/quarantine/{id}/retry.
func (s *server) RetryQuarantined(ctx context.Context, q *request, id gen.QuarantinePath, _ gen.CompanyScope) (reply, error) {
	e, err := quarantine.ParseID(q.company, id)
	if err != nil {
		return reply{}, err
	}
	return accepted(gen.QuarantineRef{ID: id, CompanyUUID: q.company}), s.opts.Dispatcher.Quarantine.Retry(ctx, e)
}

// DropQuarantined is DELETE /api/v1/quarantine/{id}.
func (s *server) DropQuarantined(ctx context.Context, q *request, id gen.QuarantinePath) (reply, error) {
	e, err := quarantine.ParseID(q.company, id)
	if err != nil {
		return reply{}, err
	}
	return noContent(), s.opts.Dispatcher.Redelivery.DropQuarantined(ctx, e)
}

func shownQuarantined(e quarantine.Entry) gen.QuarantineEntry {
	return gen.QuarantineEntry{
		ID: e.ID(), CompanyUUID: e.Company, EventID: e.EventID, SubscriberUUID: e.Subscriber, QuarantinedAt: e.At,
	}
}
