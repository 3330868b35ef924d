package api

import (
	"context"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/publish"
	"spendhook/internal/idempotency"
	"spendhook/storage/cards"
	"spendhook/subscribers"
)

// These interfaces are of the parts of the domain that tests replace. For the other parts
// Options has the types themselves. All methods are safe for concurrent use and obey the
// deadline of their context.

// subscriberService is *subscribers.Store.
type subscriberService interface {
	Create(ctx context.Context, company uuid.UUID, in subscribers.Settings) (subscribers.Subscriber, error)
	Get(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error)
	Update(ctx context.Context, company, id uuid.UUID, in subscribers.Settings) (subscribers.Subscriber, error)
	Delete(ctx context.Context, company, id uuid.UUID, revisions ...string) error
	AddEvent(ctx context.Context, company uuid.UUID, callbackURL, event string) (subscribers.Subscriber, error)
	RemoveEvent(ctx context.Context, company uuid.UUID, callbackURL, event string) error
	RotateSecret(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error)
	Pause(ctx context.Context, company, id uuid.UUID) error
	Resume(ctx context.Context, company, id uuid.UUID) error
	SigningKey(ctx context.Context, company uuid.UUID) (subscribers.SigningKey, error)
}

// publisher is *publish.Publisher.
type publisher interface {
	Accept(ctx context.Context, list []events.Event) ([]publish.Result, error)
}

// eventTypeStore is *eventtype.Store.
type eventTypeStore interface {
	List(ctx context.Context) ([]eventtype.Type, error)
	Get(ctx context.Context, name string) (eventtype.Type, error)
	Put(ctx context.Context, t eventtype.Type) (kept eventtype.Type, added bool, err error)
	Remove(ctx context.Context, name string) error
}

// deliveryStore reads the deliveries of events and erases them; it is *store.Store.
type deliveryStore interface {
	Delivery(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error)
	List(ctx context.Context, f query.Filter) (query.Page, error)
	OfEvent(ctx context.Context, ref events.Ref) ([]delivery.Delivery, error)
	SumUp(ctx context.Context, refs []events.Ref, f query.Filter) ([]query.EventSummary, error)
	Stats(ctx context.Context, company uuid.UUID, subscribers ...uuid.UUID) ([]query.Stats, error)
	Erase(ctx context.Context, ref events.Ref) error
}

// redeliveryService repeats deliveries; it is *redelivery.Service.
type redeliveryService interface {
	Retry(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error)
	Replay(ctx context.Context, ref events.Ref, only []uuid.UUID) ([]delivery.Delivery, error)
	Recover(ctx context.Context, in redelivery.RecoverRequest) (redelivery.Job, error)
	Drop(ctx context.Context, company, subscriber uuid.UUID) (redelivery.Job, error)
	RetryAll(ctx context.Context, in redelivery.RetryRequest) (redelivery.Job, error)
	Job(ctx context.Context, company, id uuid.UUID) (redelivery.Job, error)
	Jobs(ctx context.Context, f redelivery.JobFilter) (redelivery.JobPage, error)
	Cancel(ctx context.Context, company, id uuid.UUID) (redelivery.Job, error)
	Erase(ctx context.Context, company uuid.UUID) (redelivery.Job, error)
}

// feedReader reads events by their numbers; it is *feed.Reader.
type feedReader interface {
	Read(ctx context.Context, q feed.Request) (feed.Page, error)
	Wait(ctx context.Context, company uuid.UUID, after int64) (arrived bool, err error)
}

// cardSubmitter stores a bulk creation of cards and queues its items. Submit
// returns what cards.Store.CreateCardJob does.
type cardSubmitter interface {
	Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error)
}

// idempotencyStore is *idempotency.Store.
type idempotencyStore interface {
	Begin(ctx context.Context, scope, key string, fingerprint [32]byte) (*idempotency.Response, error)
	Finish(ctx context.Context, scope, key string, fingerprint [32]byte, answer idempotency.Response) error
	Abort(ctx context.Context, scope, key string, fingerprint [32]byte) error
}
