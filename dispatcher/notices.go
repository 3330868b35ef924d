package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/operational"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
	"spendhook/subscribers"
)

// deathNotice returns the encoded notice of a dead letter. It returns "" when the delivery is not
// dead. It returns "" also for a delivery of a notice: otherwise notices would cause more notices.
func (d *Dispatcher) deathNotice(o *outcome) string {
	if o.next.Status != delivery.StatusDead || eventtype.Reserved(o.next.EventType) {
		return ""
	}
	sum := sha256.Sum256([]byte(o.ref.String() + "#" + strconv.Itoa(o.next.Count)))
	text, err := d.opts.Operational.Encode(operational.Event{
		ID:   "delivery-dead-" + hex.EncodeToString(sum[:16]),
		Type: eventtype.DeliveryDead, Company: o.ref.Company, About: o.ref.ID, At: time.UnixMilli(o.next.Updated),
		Metadata: map[string]any{
			"subscriberUuid": o.ref.Subscriber, "eventId": o.ref.ID, "event": o.next.EventType,
			"attempts": o.next.Count, "reason": o.next.Reason,
		},
	})
	if err != nil {
		d.opts.Logger.Error("operational event not encoded", "event", eventtype.DeliveryDead, "event_id", o.ref.ID, "exception.message", err)
	}
	return text
}

const (
	// noticeTimeout bounds one step of a job that forwards or summarises notices.
	noticeTimeout = 5 * time.Second
	// maxForwards is the number of companies whose notices a replica forwards at once.
	maxForwards = 4
	// jobDone is the delay of a job without a next step.
	jobDone = time.Duration(-1)
)

// forward is the step of a job that copies one page of a company's notices to the operations
// company. It skips types that no subscriber of the operations company lists. It may be repeated
// after a crash.
func (d *Dispatcher) forward(ctx context.Context, company, _ uuid.UUID) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	page, more, err := d.opts.Operational.Outbox(ctx, company)
	if err != nil || len(page) == 0 {
		return jobDone, err
	}
	to := d.opts.Operational.Operations()
	if to == uuid.Nil { // the operations company is no longer configured
		return nextPage(more), d.opts.Operational.Sent(ctx, company, page)
	}
	subs, err := d.opts.Registry.Current(ctx, to)
	if err != nil {
		return 0, err
	}
	var sent, sending []operational.Outgoing
	var batch []events.Event
	for _, o := range page {
		switch {
		case o.Err != nil:
			d.opts.Logger.Error("operational event is damaged and was dropped", "company_uuid", company, "exception.message", o.Err)
			sent = append(sent, o)
		case slices.ContainsFunc(subs, func(s *subscribers.Subscriber) bool { return s.Wants(o.Event.Type) }):
			sending, batch = append(sending, o), append(batch, o.Event)
		default:
			sent = append(sent, o)
		}
	}
	accepted, failed := d.publishNotices(ctx, sending, batch)
	return nextPage(more), errors.Join(failed, d.opts.Operational.Sent(ctx, company, append(sent, accepted...)))
}

func nextPage(more bool) time.Duration {
	if more {
		return 0
	}
	return jobDone
}

// publishNotices publishes notices. It returns those that are done: accepted, by this try or
// an earlier one, or refused for good.
func (d *Dispatcher) publishNotices(ctx context.Context, sending []operational.Outgoing, batch []events.Event) (accepted []operational.Outgoing, err error) {
	if len(batch) == 0 {
		return nil, nil
	}
	results, err := d.publish(ctx, batch)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		var refused *invalid.Error
		switch {
		case r.Err == nil:
		case errors.As(r.Err, &refused), errors.Is(r.Err, publish.ErrConflict):
			d.opts.Logger.Error("operational event not forwarded", "event_id", r.ID, "exception.message", r.Err)
		default:
			err = r.Err
			continue
		}
		accepted = append(accepted, sending[i])
	}
	return accepted, err
}

// summarise is the step of a job that writes the due summaries of a company's suppressed notices.
// It may be repeated after a crash.
func (d *Dispatcher) summarise(ctx context.Context, company, _ uuid.UUID) (again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	all, err := d.opts.Operational.Suppressed(ctx, company)
	if err != nil {
		return 0, err
	}
	next := jobDone
	for _, s := range all {
		if s.Err != nil {
			d.opts.Logger.Error("count of suppressed operational events is damaged and was dropped", "company_uuid", company, "exception.message", s.Err)
		} else if wait := s.Due.Sub(d.opts.Now()); wait > 0 {
			if next == jobDone || wait < next {
				next = wait
			}
			continue
		}
		wake, more, err := d.opts.Operational.Summarise(ctx, s)
		if err != nil {
			return 0, err
		}
		if more {
			next = 0
		}
		if wake {
			d.wake(company)
		}
	}
	return next, nil
}
