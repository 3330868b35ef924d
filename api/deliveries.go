package api

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/subscribers"
)

// ListDeliveries is GET /api/v1/deliveries.
func (s *server) ListDeliveries(ctx context.Context, q *request, p gen.ListDeliveriesParams) (reply, error) {
	f := store.Filter{
		Company: q.companies, Subscriber: p.SubscriberUUID, EventTypes: or(p.Event, nil), Statuses: valuesOf[delivery.Status](p.Status),
		ErrorClasses: valuesOf[string](p.ErrorClass), CodeFrom: or(p.StatusCodeFrom, 0), CodeTo: or(p.StatusCodeTo, 0),
		From: p.From, To: p.To, Cursor: textOf(p.Cursor), Size: or(p.Size, defaultSize),
	}
	if err := checkDeliveries(f, q.companies); err != nil {
		return reply{}, err
	}
	page, err := s.opts.Dispatcher.Deliveries.List(ctx, f)
	return byCursor(f.Size, page.Items, page.Next, shownDelivery), err
}

// checkDeliveries checks a filter of the deliveries of a company, except its lists. Nil means all
// companies.
func checkDeliveries(f store.Filter, company *uuid.UUID) error {
	if f.CodeTo > 0 && f.CodeTo < f.CodeFrom {
		return fieldProblem("statusCodeTo", "INVALID", "must not be less than statusCodeFrom")
	}
	if f.Subscriber != nil && company == nil {
		return fieldProblem("companyUuid", "REQUIRED", "is required with subscriberUuid")
	}
	return checkPeriod(f.From, f.To)
}

// valuesOf converts the texts of a list to another type; nil when the list was not given.
func valuesOf[T, G ~string](given *[]G) []T {
	if given == nil || *given == nil {
		return nil
	}
	return convertAll(*given, func(value G) T { return T(value) })
}

// GetDelivery is GET /api/v1/deliveries/{id}.
func (s *server) GetDelivery(ctx context.Context, q *request, id gen.DeliveryPath) (reply, error) {
	d, err := s.opts.Dispatcher.Deliveries.Delivery(ctx, q.company, id)
	if err != nil {
		return reply{}, err
	}
	sub, err := s.opts.Registry.Find(ctx, d.Company, d.Subscriber)
	if err != nil && !errors.Is(err, subscribers.ErrNotFound) {
		return reply{}, err
	}
	return ok(shownDetail(d, sub)), nil
}

// RetryDelivery is POST /api/v1/deliveries/{id}/retry.
func (s *server) RetryDelivery(ctx context.Context, q *request, id gen.DeliveryPath, _ gen.CompanyScope) (reply, error) {
	d, err := s.opts.Dispatcher.Redelivery.Retry(ctx, q.company, id)
	return accepted(shownDelivery(d)), err
}

// shownDelivery is the published form of a delivery.
func shownDelivery(d delivery.Delivery) gen.Delivery {
	last := d.LastAttempt()
	return gen.Delivery{
		ID: d.PublicID(), EventID: d.ID, Event: d.EventType, CompanyUUID: d.Company,
		SubscriberUUID: d.Subscriber, Status: gen.DeliveryStatus(d.Status), AttemptCount: d.Count,
		CreatedAt: time.UnixMilli(d.Created).UTC(), UpdatedAt: time.UnixMilli(d.Updated).UTC(),
		NextAttemptAt: d.NextAttemptAt(), Reason: d.Reason, Error: gen.ErrorClass(last.Error), StatusCode: optional(last.StatusCode),
	}
}

// deliveryDetail is a delivery with its attempts.
type deliveryDetail struct {
	gen.Delivery

	Attempts []gen.Attempt `json:"attempts"`
}

func shownDetail(d delivery.Delivery, sub *subscribers.Subscriber) deliveryDetail {
	return deliveryDetail{shownDelivery(d), convertAll(d.Attempts, func(a attempt.Attempt) gen.Attempt { return shownAttempt(d.ID, a, sub) })}
}

// shownAttempt is the published form of an attempt. sub is nil when it was deleted.
func shownAttempt(eventID string, a attempt.Attempt, sub *subscribers.Subscriber) gen.Attempt {
	startedAt := time.UnixMilli(a.StartedAt).UTC()
	version, reached := a.Destination()
	var address string
	if reached.IsValid() {
		address = reached.String()
	}
	return gen.Attempt{
		URL: sub.URLAt(version), URLVersion: version, Address: address,
		Number: a.Number, StartedAt: startedAt, DurationMs: a.DurationMs, Error: gen.ErrorClass(a.Error),
		ResponseBody: strings.ToValidUTF8(string(a.ResponseBody), "\uFFFD"), RequestHeaders: a.Headers(eventID), Timing: shownTiming(a),
		TransformError: a.Transform, TraceID: a.TraceID(), StatusCode: optional(a.StatusCode),
	}
}

func shownTiming(a attempt.Attempt) gen.AttemptTiming {
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return gen.AttemptTiming{
		WaitedMs: a.Waited, ConnectionMs: ms(a.WaitForConnection()),
		DNSMs: ms(a.Timing[0]), ConnectMs: ms(a.Timing[1]), TLSMs: ms(a.Timing[2]), FirstByteMs: ms(a.Timing[3]), BodyMs: ms(a.Timing[4]),
	}
}
