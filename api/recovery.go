package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/redelivery"
)

// testTimeout bounds the work for a test delivery.
const testTimeout = 20 * time.Second

// TestSubscriber is POST /api/v1/subscribers/{uuid}/test.
func (s *server) TestSubscriber(w http.ResponseWriter, r *http.Request, id gen.SubscriberPath, p gen.TestSubscriberParams) {
	once := func(w http.ResponseWriter, r *http.Request, handle handlerFunc) {
		s.onceWithin(w, r, testTimeout, handle)
	}
	withBody(once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, _ gen.CompanyScope) (reply, error) {
		if _, err := s.opts.Subscribers.Get(ctx, company, id); err != nil {
			return reply{}, err
		}
		c.auditTarget(&company, "subscriber", id.String())
		result, err := s.opts.Inspector.Test(ctx, company, id)
		return ok(gen.TestResult{
			EventID: result.EventID, Delivered: result.Delivered, Attempt: shownAttempt(result.EventID, result.Attempt),
		}), err
	})
}

// GetSubscriberStats is GET /api/v1/subscribers/{uuid}/stats.
func (s *server) GetSubscriberStats(w http.ResponseWriter, r *http.Request, id gen.SubscriberPath, p gen.GetSubscriberStatsParams) {
	s.doFor(w, r, p.CompanyUUID, func(ctx context.Context, company uuid.UUID) (reply, error) {
		if _, err := s.opts.Subscribers.Get(ctx, company, id); err != nil {
			return reply{}, err
		}
		all, err := s.opts.Deliveries.Stats(ctx, company, id)
		if err != nil {
			return reply{}, err
		}
		stats := all[0]
		return ok(gen.SubscriberStats{
			SubscriberUUID: id, Total: stats.Total, Live: stats.Live, Dead: stats.Dead,
			OldestLiveAt: stats.OldestLiveAt, Waiting: stats.Waiting,
		}), nil
	})
}

// PauseSubscriber is POST /api/v1/subscribers/{uuid}/pause.
func (s *server) PauseSubscriber(w http.ResponseWriter, r *http.Request, id gen.SubscriberPath, p gen.PauseSubscriberParams) {
	withBody(s.once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, _ gen.CompanyScope) (reply, error) {
		c.auditTarget(&company, "subscriber", id.String())
		if err := s.opts.Subscribers.Pause(ctx, company, id); err != nil {
			return reply{}, err
		}
		return s.answerSubscriber(ctx, company, id)
	})
}

// ResumeSubscriber is POST /api/v1/subscribers/{uuid}/resume.
func (s *server) ResumeSubscriber(w http.ResponseWriter, r *http.Request, id gen.SubscriberPath, p gen.ResumeSubscriberParams) {
	withBody(s.once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.ResumeRequest) (reply, error) {
		c.auditTarget(&company, "subscriber", id.String())
		if or(in.Drop, false) {
			c.auditDetail("drop")
			job, err := s.opts.Redelivery.Drop(ctx, company, id)
			return startedJob(job), err
		}
		if err := s.opts.Subscribers.Resume(ctx, company, id); err != nil {
			return reply{}, err
		}
		return s.answerSubscriber(ctx, company, id)
	})
}

// RecoverSubscriber is POST /api/v1/subscribers/{uuid}/recover.
func (s *server) RecoverSubscriber(w http.ResponseWriter, r *http.Request, id gen.SubscriberPath, p gen.RecoverSubscriberParams) {
	withBody(s.once, w, r, p.CompanyUUID, func(ctx context.Context, c *caller, company uuid.UUID, in gen.RecoverRequest) (reply, error) {
		request, err := recoverRequest(in, s.opts.Now())
		if err != nil {
			return reply{}, err
		}
		if _, err := s.opts.Subscribers.Get(ctx, company, id); err != nil {
			return reply{}, err
		}
		request.Company, request.Subscriber = company, id
		c.auditTarget(&company, "subscriber", id.String())
		if request.DryRun {
			c.auditDetail("dry run")
		}
		job, err := s.opts.Redelivery.Recover(ctx, request)
		return startedJob(job), err
	})
}

func recoverRequest(in gen.RecoverRequest, now time.Time) (redelivery.RecoverRequest, error) {
	switch {
	case in.Since.IsZero():
		return redelivery.RecoverRequest{}, fieldProblem("since", "REQUIRED", "is required")
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

// maxStatuses is how many statuses a delivery may have.
const maxStatuses = 6
