package dispatcher

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/subscribers"
)

// Quarantined lists events, deliveries and subscribers that could not be read.
// cursor.ErrBad when the cursor is not of this list.
func (d *Dispatcher) Quarantined(ctx context.Context, f quarantine.Filter) (quarantine.Page, error) {
	return d.quarantined.List(ctx, f)
}

// RetryQuarantined has an entry of the quarantine tried again.
// quarantine.ErrNotFound when there is none.
func (d *Dispatcher) RetryQuarantined(ctx context.Context, e quarantine.Entry) error {
	return d.quarantined.Retry(ctx, e)
}

// DropQuarantined gives up an entry of the quarantine; a subscriber is deleted.
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

// quarantineDamaged lists those of a company's subscribers that cannot be read. Work of
// theirs waits, whether that succeeds or not.
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
