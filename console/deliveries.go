package console

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/subscribers"
)

// deliveryRow is a delivery with its subscriber, which may be gone.
type deliveryRow struct {
	delivery.Delivery

	Subscriber *subscribers.Subscriber
	Last       *delivery.Attempt
}

// EventPath is the address of its event's page.
func (r deliveryRow) EventPath() string { return eventPath(r.Ref.Ref) }

// Tick names it on a list.
func (r deliveryRow) Tick() string { return r.Company.String() + "/" + r.PublicID() }

type deliveriesPage struct {
	Rows   []deliveryRow
	Next   string
	Dead   bool
	Status string // that is asked for; "": any
}

var deliveryStatuses = []string{
	string(delivery.StatusPending), string(delivery.StatusDelivering), string(delivery.StatusRetrying),
	string(delivery.StatusDelivered), string(delivery.StatusDead), string(delivery.StatusCancelled),
}

func (s *server) deliveries(ctx context.Context, v *visit) error {
	return s.listDeliveries(ctx, v, v.choice("status", deliveryStatuses...), false)
}

func (s *server) dead(ctx context.Context, v *visit) error {
	return s.listDeliveries(ctx, v, string(delivery.StatusDead), true)
}

// deliveryFilter reads what a list of deliveries is asked for, but for their status.
func (v *visit) deliveryFilter(company *uuid.UUID) (f delivery.Filter, err error) {
	f = delivery.Filter{
		Company: company, EventTypes: v.list("event"), ErrorClasses: v.list("error"), From: v.since(), Cursor: v.text("cursor"), Size: listSize,
	}
	f.CodeFrom = v.number("code")
	f.CodeTo = f.CodeFrom
	f.Subscriber, err = v.subscriberAsked(company)
	return f, err
}

// subscriberAsked is the subscriber of the company that a list is asked for; nil: any.
func (v *visit) subscriberAsked(company *uuid.UUID) (*uuid.UUID, error) {
	text := v.text("subscriber")
	if text == "" {
		return nil, nil
	}
	id, err := uuid.Parse(text)
	if err != nil || company == nil {
		return nil, errNoPage
	}
	return &id, nil
}

func (s *server) listDeliveries(ctx context.Context, v *visit, status string, dead bool) error {
	company, err := v.company()
	if err != nil {
		return err
	}
	f, err := v.deliveryFilter(company)
	if err != nil {
		return err
	}
	if status != "" {
		f.Statuses = []delivery.Status{delivery.Status(status)}
	}
	found, err := s.opts.Deliveries.List(ctx, f)
	if err != nil {
		return err
	}
	page := deliveriesPage{Next: v.next(found.Next), Dead: dead, Status: status}
	if page.Rows, err = s.deliveryRows(ctx, found.Items); err != nil {
		return err
	}
	title := "Deliveries"
	if dead {
		title = "Dead letters"
	}
	v.show("deliveries", title, page)
	return nil
}

// deliveryRows adds the subscribers, each read once.
func (s *server) deliveryRows(ctx context.Context, items []delivery.Delivery) ([]deliveryRow, error) {
	type key struct{ company, id uuid.UUID }
	read := map[key]*subscribers.Subscriber{}
	rows := make([]deliveryRow, len(items))
	for i, d := range items {
		at := key{d.Company, d.Subscriber}
		sub, known := read[at]
		if !known {
			switch found, err := s.opts.Subscribers.Get(ctx, d.Company, d.Subscriber); {
			case err == nil:
				sub = &found
			case s.unavailable(err):
				return nil, err
			}
			read[at] = sub
		}
		rows[i] = deliveryRow{Delivery: d, Subscriber: sub}
		if n := len(d.Attempts); n > 0 {
			rows[i].Last = &d.Attempts[n-1]
		}
	}
	return rows, nil
}

type deliveryPage struct {
	deliveryRow

	Sequence int64
}

func (s *server) delivery(ctx context.Context, v *visit) error {
	company, err := v.oneCompany()
	if err != nil {
		return err
	}
	found, err := s.opts.Deliveries.Delivery(ctx, company, v.r.PathValue("id"))
	if err != nil {
		return err
	}
	rows, err := s.deliveryRows(ctx, []delivery.Delivery{found})
	if err != nil {
		return err
	}
	page := deliveryPage{deliveryRow: rows[0]}
	switch stored, err := s.opts.Events.Get(ctx, found.Ref.Ref); {
	case err == nil:
		page.Sequence = stored.Sequence
	case !errors.Is(err, events.ErrNotFound):
		return err
	}
	v.show("delivery", "Delivery of "+found.EventType, &page) // its methods need an address
	return nil
}
