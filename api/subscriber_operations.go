package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/events/history"
	"spendhook/subscribers"
)

// TestSubscriber is POST /api/v1/subscribers/{uuid}/test.
func (s *server) TestSubscriber(ctx context.Context, q *request, id gen.SubscriberPath, _ gen.CompanyScope) (reply, error) {
	sub, err := s.opts.Subscribers.Get(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	result, err := s.opts.Inspector.Test(ctx, q.company, id)
	return ok(gen.TestResult{
		EventID: result.EventID, Delivered: result.Delivered, Attempt: shownAttempt(result.EventID, result.Attempt, &sub),
	}), err
}

// VerifySubscriber is POST /api/v1/subscribers/{uuid}/verify.
func (s *server) VerifySubscriber(ctx context.Context, q *request, id gen.SubscriberPath, _ gen.CompanyScope) (reply, error) {
	sub, err := s.opts.Challenger.Verify(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	return s.answerWith(ctx, http.StatusOK, sub)
}

// GetSubscriberStats is GET /api/v1/subscribers/{uuid}/stats.
func (s *server) GetSubscriberStats(ctx context.Context, q *request, id gen.SubscriberPath) (reply, error) {
	if _, err := s.opts.Subscribers.Get(ctx, q.company, id); err != nil {
		return reply{}, err
	}
	all, err := s.opts.Dispatcher.Deliveries.Stats(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	stats := all[0]
	return ok(gen.SubscriberStats{
		SubscriberUUID: id, Total: stats.Total, Live: stats.Live, Dead: stats.Dead,
		OldestLiveAt: stats.OldestLiveAt, Waiting: stats.Waiting,
	}), nil
}

// PauseSubscriber is POST /api/v1/subscribers/{uuid}/pause.
func (s *server) PauseSubscriber(ctx context.Context, q *request, id gen.SubscriberPath, _ gen.CompanyScope) (reply, error) {
	if err := s.opts.Subscribers.Pause(ctx, q.company, id); err != nil {
		return reply{}, err
	}
	return s.GetSubscriber(ctx, q, id)
}

// ResumeSubscriber is POST /api/v1/subscribers/{uuid}/resume.
func (s *server) ResumeSubscriber(ctx context.Context, q *request, id gen.SubscriberPath, in gen.ResumeRequest) (reply, error) {
	if or(in.Drop, false) {
		q.auditDetail("drop")
		job, err := s.opts.Dispatcher.Redelivery.Drop(ctx, q.company, id)
		return startedJob(job), err
	}
	if err := s.opts.Subscribers.Resume(ctx, q.company, id); err != nil {
		return reply{}, err
	}
	return s.GetSubscriber(ctx, q, id)
}

// RecoverSubscriber is POST /api/v1/subscribers/{uuid}/recover.
func (s *server) RecoverSubscriber(ctx context.Context, q *request, id gen.SubscriberPath, in gen.RecoverRequest) (reply, error) {
	wanted, err := recoverRequest(in, s.opts.Now())
	if err != nil {
		return reply{}, err
	}
	wanted.Company, wanted.Subscriber = q.company, id
	if wanted.DryRun {
		q.auditDetail("dry run")
	}
	job, err := s.opts.Dispatcher.Redelivery.Recover(ctx, wanted)
	return startedJob(job), err
}

func recoverRequest(in gen.RecoverRequest, now time.Time) (redelivery.RecoverRequest, error) {
	switch {
	case in.Since.IsZero():
		return redelivery.RecoverRequest{}, fieldProblem("since", "REQUIRED", "is required, and must be later than 0001-01-01T00:00:00Z")
	case in.Since.After(now):
		return redelivery.RecoverRequest{}, fieldProblem("since", "INVALID", "must not be in the future")
	}
	request := redelivery.RecoverRequest{Since: in.Since, DryRun: or(in.DryRun, false)}
	if in.Until != nil {
		request.Until = *in.Until
		if request.Until.Before(request.Since) {
			return request, fieldProblem("until", "INVALID", "must not be before since")
		}
	}
	if in.Statuses == nil {
		return request, nil
	}
	if len(*in.Statuses) > maxStatuses {
		return request, fieldProblem("statuses", "TOO_MANY", "must have at most %d statuses", maxStatuses)
	}
	for i, status := range *in.Statuses {
		if !status.Valid() {
			return request, fieldProblem(fmt.Sprintf("/statuses/%d", i), "INVALID", "must be a status of deliveries")
		}
		request.Statuses = append(request.Statuses, delivery.Status(status))
	}
	return request, nil
}

// maxStatuses is the number of statuses of deliveries.
const maxStatuses = 6

// maxTestEvents bounds the events that a filter and a transform are tested on.
const maxTestEvents = 100

// TestSubscriberFilter is POST /api/v1/subscribers/{uuid}/filter-test.
func (s *server) TestSubscriberFilter(ctx context.Context, q *request, id gen.SubscriberPath, in gen.FilterTest) (reply, error) {
	sub, err := s.opts.Subscribers.Get(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	if sub, err = sub.WithExpressions(ctx, in.Filter, in.Transform); err != nil {
		return reply{}, err
	}
	list, err := s.filterTestEvents(ctx, sub.CompanyUUID, in.EventID)
	result := tryExpressions(ctx, &sub, list)
	return ok(result), cmp.Or(err, ctx.Err())
}

// filterTestEvents returns the events to test a filter on: the event with the id, or the latest events
// of the company.
func (s *server) filterTestEvents(ctx context.Context, company uuid.UUID, id *string) ([]events.Stored, error) {
	if id == nil {
		page, err := s.opts.Events.List(ctx, history.Filter{Company: &company, Size: maxTestEvents})
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

func tryExpressions(ctx context.Context, sub *subscribers.Subscriber, list []events.Stored) gen.FilterTestResult {
	out := gen.FilterTestResult{Results: make([]gen.FilterVerdict, len(list))}
	for i, tried := range inspect.Try(ctx, sub, list) {
		out.Results[i] = gen.FilterVerdict{
			EventID: list[i].ID, Event: list[i].Type, Matches: tried.Matches, Error: message(tried.Err),
			Body: tried.Body, TransformError: message(tried.TransformErr),
		}
	}
	return out
}

// message is the text of an error; nil for none.
func message(err error) *string {
	if err == nil {
		return nil
	}
	return new(err.Error())
}
