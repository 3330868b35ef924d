package api

import (
	"context"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/storage/cards"
	"spendhook/storage/cards/bulk"
	"spendhook/storage/creations"
)

// These interfaces are of the parts of the domain that tests replace. For the other parts
// Options has the types themselves. All methods are safe for concurrent use and obey the
// deadline of their context.

// publisher is *publish.Publisher.
type publisher interface {
	Accept(ctx context.Context, list []events.Event) ([]publish.Result, error)
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
// returns what bulk.Store.CreateCardJob does.
type cardSubmitter interface {
	Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once creations.Once) (bulk.Job, error)
}
