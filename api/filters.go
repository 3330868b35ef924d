package api

import (
	"context"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/subscribers"
	"spendhook/subscribers/filter"
)

// filterTestEvents is how many events a filter is tried on.
const filterTestEvents = 100

// TestSubscriberFilter is POST /api/v1/subscribers/{uuid}/filter-test.
func (s *server) TestSubscriberFilter(ctx context.Context, q *request, id gen.SubscriberPath, in gen.FilterTest) (reply, error) {
	sub, err := s.opts.Subscribers.Get(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	if in.Filter == nil {
		in.Filter = &sub.Filter
	}
	if sub, err = sub.WithFilter(*in.Filter); err != nil {
		return reply{}, fieldProblem("filter", "INVALID", "%s", err)
	}
	list, err := s.filterTestEvents(ctx, sub.CompanyUUID, in.EventID)
	return ok(tryFilter(&sub, list)), err
}

// filterTestEvents are those that a filter is tried on: one, or the latest of the company.
func (s *server) filterTestEvents(ctx context.Context, company uuid.UUID, id *string) ([]events.Stored, error) {
	if id == nil {
		page, err := s.opts.Events.List(ctx, history.Filter{Company: &company, Size: filterTestEvents})
		return page.Items, err
	}
	if !isEventID(*id) {
		return nil, events.ErrNotFound
	}
	event, err := s.opts.Events.Get(ctx, events.Ref{Company: company, ID: *id})
	if err == nil && event.State == events.Compacted {
		err = events.ErrCompacted
	}
	return []events.Stored{event}, err
}

func tryFilter(sub *subscribers.Subscriber, list []events.Stored) gen.FilterTestResult {
	out := gen.FilterTestResult{Results: make([]gen.FilterVerdict, len(list))}
	for i, e := range list {
		matches, err := sub.Matches(filter.NewEvent(e.Event))
		out.Results[i] = gen.FilterVerdict{EventID: e.ID, Event: e.Type, Matches: matches}
		if err != nil {
			out.Results[i].Error = new(err.Error())
		}
	}
	return out
}
