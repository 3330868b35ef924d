package cardjobs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/invalid"
	"spendhook/storage/cards"
)

const (
	typeCreated = "CARD_CREATION_REQUEST_CREATED"
	typeError   = "CARD_CREATION_REQUEST_ERROR"
)

// metadata is the metadata of an outcome's event, without its errors.
type metadata struct {
	RequestUUID uuid.UUID  `json:"requestUuid"`
	JobUUID     uuid.UUID  `json:"jobUuid"`
	Index       int        `json:"index"`
	CardUUID    *uuid.UUID `json:"cardUuid,omitzero"`
	UserUUID    uuid.UUID  `json:"userUuid"`
	Alias       string     `json:"alias"`
}

// event makes the event of a finished item from stored fields only. The event is the same on every
// try and in every replica, so it is accepted once.
func event(item *cards.Item) (events.Event, error) {
	e := events.Event{
		ID: events.OwnPrefix + "card-request-" + item.RequestUUID.String(), CompanyUUID: item.CompanyUUID,
		Type: typeCreated, Timestamp: *item.FinishedAt,
	}
	if item.Status == cards.ItemError {
		e.Type, e.ErrorCode, e.ErrorMessage = typeError, item.ErrorCode, item.ErrorMessage
	}
	var err error
	e.Metadata, err = json.Marshal(&metadata{
		RequestUUID: item.RequestUUID, JobUUID: item.JobUUID, Index: item.Index,
		CardUUID: item.CardUUID, UserUUID: item.UserUUID, Alias: item.Alias,
	})
	if err != nil {
		return events.Event{}, fmt.Errorf("encode outcome of %s: %w", item.RequestUUID, err)
	}
	return e, nil
}

// settled reports whether an outcome needs no further try: its event was accepted, or never will be.
// A conflict is final, because the id belongs to another event. Either a client of the company used
// the request's UUID in its own event id, or an earlier release published the event with other texts
// and left its row in the outbox. An event in the future is accepted later, when the clocks agree.
func settled(err error) bool {
	if bad, ok := errors.AsType[*invalid.Error](err); ok {
		return !slices.ContainsFunc(bad.Fields, func(f invalid.Field) bool { return f.Code == "EVENT_IN_FUTURE" })
	}
	return err == nil || errors.Is(err, publish.ErrConflict)
}

// publish publishes outcomes and removes the settled ones from the outbox.
func (r *Runner) publish(ctx context.Context, items ...cards.Item) error {
	batch := make([]events.Event, len(items))
	for i := range items {
		var err error
		if batch[i], err = event(&items[i]); err != nil {
			return err
		}
	}
	results, err := r.opts.Publish(ctx, batch)
	if err != nil {
		return fmt.Errorf("publish outcomes: %w", err)
	}
	var done []uuid.UUID
	var open error
	for i := range items {
		if settled(results[i].Err) {
			done = append(done, items[i].RequestUUID)
		} else {
			open = fmt.Errorf("publish outcome of %s: %w", items[i].RequestUUID, results[i].Err)
		}
	}
	marked, err := r.opts.Store.MarkPublished(ctx, done...)
	if err == nil {
		for i := range items {
			if marked[items[i].RequestUUID] { // else another replica counts the outcome
				r.count(&items[i], results[i])
			}
		}
	}
	return errors.Join(err, open)
}

func (r *Runner) count(item *cards.Item, result publish.Result) {
	outcome := itemCreated
	switch {
	case result.Err != nil:
		outcome = itemRefused
		r.opts.Logger.Error("card outcome cannot be published", "event_id", result.ID, "company_uuid", item.CompanyUUID,
			"job_uuid", item.JobUUID, "item_index", item.Index, "exception.message", result.Err)
	case item.Status == cards.ItemError:
		outcome = itemError
	}
	r.metrics.items.WithLabelValues(outcome).Inc()
}

// outboxBatch is how many outcomes of a company are published at once.
const outboxBatch = 200

// publishPending publishes the outcomes in the outbox, companies in turn. A crash or a failure left
// them there, or a worker is about to publish them. A company whose outcomes cannot all be
// published, because its backlog is full or one of its keys is damaged, gets no further turn in this
// pass and so delays no other company.
func (r *Runner) publishPending(ctx context.Context) (open error) {
	failed := map[uuid.UUID]bool{}
	for more := true; more; {
		more = false
		for company := uuid.Nil; ; {
			items, err := r.opts.Store.NextOutcomes(ctx, company, outboxBatch)
			if err != nil {
				return err
			}
			if len(items) == 0 {
				break
			}
			if company = items[0].CompanyUUID; failed[company] {
				continue
			}
			if err := r.publish(ctx, items...); err != nil {
				open, failed[company] = err, true
			} else if len(items) == outboxBatch {
				more = true
			}
		}
	}
	return open
}
