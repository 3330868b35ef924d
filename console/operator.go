package console

import (
	"context"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
)

type auditPage struct {
	Entries []audit.Entry
	Next    string
}

func (s *server) audit(ctx context.Context, v *visit) error {
	company, err := v.company()
	if err != nil {
		return err
	}
	found, err := s.opts.Audit.List(ctx, audit.Filter{
		Company: company, Actor: v.text("actor"), Action: v.text("action"), Target: v.text("target"),
		From: v.since(), Cursor: v.text("cursor"), Size: listSize,
	})
	if err != nil {
		return err
	}
	v.show("audit", "Audit", auditPage{found.Items, v.next(found.Next)})
	return nil
}

type quarantinePage struct {
	Entries []quarantine.Entry
	Next    string
}

func (s *server) quarantine(ctx context.Context, v *visit) error {
	company, err := v.company()
	if err != nil {
		return err
	}
	found, err := s.opts.Dispatcher.Quarantined(ctx, quarantine.Filter{Company: company, Size: listSize, Cursor: v.text("cursor")})
	if err != nil {
		return err
	}
	v.show("quarantine", "Quarantine", quarantinePage{found.Items, v.next(found.Next)})
	return nil
}

func (s *server) retryQuarantined(ctx context.Context, v *visit) error {
	return s.changeQuarantine(v, "quarantine.retry", "released", func(e quarantine.Entry) error {
		return s.opts.Dispatcher.RetryQuarantined(ctx, e)
	})
}

func (s *server) dropQuarantined(ctx context.Context, v *visit) error {
	return s.changeQuarantine(v, "quarantine.drop", "dropped", func(e quarantine.Entry) error {
		return s.opts.Dispatcher.DropQuarantined(ctx, e)
	})
}

func (s *server) changeQuarantine(v *visit, action, done string, change func(quarantine.Entry) error) error {
	e, err := v.quarantined()
	if err != nil {
		return err
	}
	id := e.EventID
	if e.Subscriber != nil {
		id += "." + e.Subscriber.String()
	}
	v.changes(&e.Company, "quarantine", id)
	v.as(action, "")
	if err := change(e); err != nil {
		return err
	}
	return v.done("/console/quarantine", done)
}

// quarantined is the entry that a form names.
func (v *visit) quarantined() (e quarantine.Entry, err error) {
	of, err := uuid.Parse(v.text("of"))
	if err != nil || v.session.Company != nil && *v.session.Company != of || v.session.Company == nil && !v.session.May(platform) {
		return e, errNoPage
	}
	id := v.text("id")
	if _, err := events.ParseRef(events.Ref{ID: id}.String()); err == nil {
		return quarantine.Entry{Company: of, EventID: id}, nil
	}
	ref, err := delivery.ParseID(of, id)
	if err != nil {
		return e, quarantine.ErrNotFound
	}
	return quarantine.Entry{Company: of, EventID: ref.ID, Subscriber: &ref.Subscriber}, nil
}
