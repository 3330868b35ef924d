package dispatcher

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/subscribers"
)

// ParseQuarantined reads the id of an entry (quarantine.Entry.ID). The error is
// quarantine.ErrNotFound.
func ParseQuarantined(company uuid.UUID, id string) (quarantine.Entry, error) {
	if _, err := events.ParseRef(events.Ref{Company: company, ID: id}.String()); err == nil {
		return quarantine.Entry{Company: company, EventID: id}, nil
	}
	if text, isSubscriber := strings.CutPrefix(id, "."); isSubscriber {
		subscriber, err := uuid.Parse(text)
		if err != nil || subscriber.String() != text {
			return quarantine.Entry{}, quarantine.ErrNotFound
		}
		return quarantine.Entry{Company: company, Subscriber: &subscriber}, nil
	}
	ref, err := delivery.ParseID(company, id)
	if err != nil {
		return quarantine.Entry{}, quarantine.ErrNotFound
	}
	return quarantine.Entry{Company: company, EventID: ref.ID, Subscriber: &ref.Subscriber}, nil
}

// Quarantined lists events, deliveries and subscribers that could not be read.
// cursor.ErrBad when the cursor is not of this list.
func (d *Dispatcher) Quarantined(ctx context.Context, f quarantine.Filter) (quarantine.Page, error) {
	return d.quarantined.List(ctx, f)
}

// RetryQuarantined requeues an entry of the quarantine.
// quarantine.ErrNotFound when there is none.
func (d *Dispatcher) RetryQuarantined(ctx context.Context, e quarantine.Entry) error {
	return d.quarantined.Retry(ctx, e)
}

// DropQuarantined drops an entry of the quarantine; a subscriber is deleted.
// quarantine.ErrNotFound when there is none.
func (d *Dispatcher) DropQuarantined(ctx context.Context, e quarantine.Entry) error {
	if e.EventID != "" {
		return d.deliveries.DropQuarantined(ctx, e)
	}
	listed, err := d.quarantined.Has(ctx, e)
	switch {
	case err != nil:
		return err
	case !listed:
		return quarantine.ErrNotFound
	}
	err = subscribers.NewService(d.opts.Subscribers, d.redelivery).Delete(ctx, e.Company, *e.Subscriber)
	if err != nil && !errors.Is(err, subscribers.ErrNotFound) {
		return err
	}
	return d.quarantined.Forget(ctx, e)
}

// quarantineDamaged adds a company's damaged subscribers to the quarantine. Their deliveries
// wait, also when that fails.
func (d *Dispatcher) quarantineDamaged(ctx context.Context, company uuid.UUID, subs []*subscribers.Subscriber) {
	for _, sub := range subs {
		if sub.Locked == nil {
			continue
		}
		added, err := d.quarantined.AddSubscriber(ctx, company, sub.UUID, d.opts.Now())
		if err != nil {
			d.opts.Logger.Error("damaged subscriber not quarantined, trying again with its next work", "company_uuid", company, "exception.message", err)
		}
		if added {
			d.metrics.quarantined.Inc()
			d.opts.Logger.Error("stored subscriber is damaged and was quarantined", "company_uuid", company, "subscriber_uuid", sub.UUID)
		}
	}
}
