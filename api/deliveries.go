package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery"
)

// ListDeliveries is GET /api/v1/deliveries.
func (s *server) ListDeliveries(w http.ResponseWriter, r *http.Request, p gen.ListDeliveriesParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		filter, err := deliveryFilter(c, p)
		if err != nil {
			return reply{}, err
		}
		page, err := s.opts.Deliveries.List(ctx, filter)
		if err != nil {
			return reply{}, err
		}
		return byCursor(r, filter.Size, page.Items, page.Next, shownDelivery), nil
	})
}

func deliveryFilter(c *caller, p gen.ListDeliveriesParams) (f delivery.Filter, err error) {
	if err = checkPeriod(p.From, p.To); err != nil {
		return f, err
	}
	f.Size, f.Status = or(p.Size, defaultSize), delivery.Status(text(p.Status))
	f.Subscriber, f.EventType, f.From, f.To, f.Cursor = p.SubscriberUUID, text(p.Event), p.From, p.To, text(p.Cursor)
	f.Company, err = c.companyOfList(p.CompanyUUID)
	if err == nil && f.Subscriber != nil && f.Company == nil {
		err = fieldProblem("companyUuid", "REQUIRED", "is required with subscriberUuid")
	}
	return f, err
}

// GetDelivery is GET /api/v1/deliveries/{id}.
func (s *server) GetDelivery(w http.ResponseWriter, r *http.Request, id gen.DeliveryPath, p gen.GetDeliveryParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		company, err := c.companyFor(p.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		d, err := s.opts.Deliveries.Delivery(ctx, company, id)
		return ok(shownDetail(d)), err
	})
}

// RetryDelivery is POST /api/v1/deliveries/{id}/retry.
func (s *server) RetryDelivery(w http.ResponseWriter, r *http.Request, id gen.DeliveryPath, p gen.RetryDeliveryParams) {
	s.do(w, r, func(ctx context.Context, c *caller) (reply, error) {
		in, err := decodeOptional[gen.CompanyScope](r)
		if err != nil {
			return reply{}, err
		}
		company, err := c.companyFor(p.CompanyUUID, in.CompanyUUID)
		if err != nil {
			return reply{}, err
		}
		c.changes(company, "delivery", id)
		d, err := s.opts.Redelivery.Retry(ctx, company, id)
		return reply{status: http.StatusAccepted, content: shownDelivery(d)}, err
	})
}

func shownDelivery(d delivery.Delivery) gen.Delivery {
	return gen.Delivery{
		ID: d.ID(), EventID: d.EventID, Event: d.EventType, CompanyUUID: d.CompanyUUID,
		SubscriberUUID: d.SubscriberUUID, Status: gen.DeliveryStatus(d.Status), AttemptCount: d.AttemptCount,
		CreatedAt: d.CreatedAt, UpdatedAt: d.UpdatedAt, NextAttemptAt: d.NextAttemptAt, Reason: d.Reason,
	}
}

func shownDetail(d delivery.Delivery) gen.DeliveryDetail {
	s := shownDelivery(d)
	detail := gen.DeliveryDetail{
		ID: s.ID, EventID: s.EventID, Event: s.Event, CompanyUUID: s.CompanyUUID,
		SubscriberUUID: s.SubscriberUUID, Status: s.Status, AttemptCount: s.AttemptCount,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, NextAttemptAt: s.NextAttemptAt, Reason: s.Reason,
		Attempts: make([]gen.Attempt, len(d.Attempts)),
	}
	for i, a := range d.Attempts {
		detail.Attempts[i] = shownAttempt(d.EventID, a)
	}
	return detail
}

func shownAttempt(eventID string, a delivery.Attempt) gen.Attempt {
	shown := gen.Attempt{
		Number: a.Number, StartedAt: a.StartedAt, DurationMs: a.Duration.Milliseconds(), Error: a.Error,
		ResponseBody: strings.ToValidUTF8(string(a.ResponseBody), "\uFFFD"), RequestHeaders: requestHeaders(eventID, a),
	}
	if a.StatusCode != 0 {
		shown.StatusCode = &a.StatusCode
	}
	return shown
}

// requestHeaders are those that an attempt was made with. They follow from the
// delivery, so they are not stored; the signature is not shown.
func requestHeaders(eventID string, a delivery.Attempt) map[string]string {
	return map[string]string{
		"Content-Type":      mediaJSON,
		"webhook-id":        eventID,
		"webhook-timestamp": strconv.FormatInt(a.StartedAt.Unix(), 10),
		"webhook-signature": "[redacted]",
	}
}
