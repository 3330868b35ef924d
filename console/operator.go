package console

import (
	"context"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/dispatcher/workqueue/quarantine"
)

type auditPage struct {
	Entries []audit.Entry
	Next    string
}

func (s *server) audit(ctx context.Context, v *visit, company *uuid.UUID) error {
	found, err := s.opts.Audit.List(ctx, audit.Filter{
		Company: company, Actor: v.Query("actor"), Action: v.Query("action"), Target: v.Query("target"),
		From: v.since(), Cursor: v.Query("cursor"), Size: listSize,
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

func (s *server) quarantine(ctx context.Context, v *visit, company *uuid.UUID) error {
	found, err := s.opts.Dispatcher.Quarantine.List(ctx, quarantine.Filter{Company: company, Size: listSize, Cursor: v.Query("cursor")})
	if err != nil {
		return err
	}
	v.show("quarantine", "Quarantine", quarantinePage{found.Items, v.next(found.Next)})
	return nil
}

func (s *server) retryQuarantined(ctx context.Context, v *visit) error {
	return s.changeQuarantine(v, "quarantine.retry", "released", func(e quarantine.Entry) error {
		return s.opts.Dispatcher.Quarantine.Retry(ctx, e)
	})
}

func (s *server) dropQuarantined(ctx context.Context, v *visit) error {
	return s.changeQuarantine(v, "quarantine.drop", "dropped", func(e quarantine.Entry) error {
		return s.opts.Redelivery.DropQuarantined(ctx, e)
	})
}

func (s *server) changeQuarantine(v *visit, action, done string, change func(quarantine.Entry) error) error {
	e, err := v.quarantined()
	if err != nil {
		return err
	}
	v.setAuditEntry(action, "", &e.Company, "quarantine", e.ID())
	if err := change(e); err != nil {
		return err
	}
	return v.done("/console/quarantine", done)
}

// quarantined returns the entry in a form.
func (v *visit) quarantined() (e quarantine.Entry, err error) {
	of, err := uuid.Parse(v.Query("of"))
	if err != nil || !v.includes(of) {
		return e, errNoPage
	}
	return quarantine.ParseID(of, v.Query("id"))
}
