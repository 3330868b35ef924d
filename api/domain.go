package api

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/google/uuid"
	"github.com/shopspring/decimal"

	"spendhook/auth/clients"
	"spendhook/auth/tokens"
	"spendhook/console/session"
	"spendhook/dispatcher"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/delivery/totals"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/events/publish"
	"spendhook/internal/idempotency"
	"spendhook/storage/cards"
	"spendhook/storage/spend"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
	"spendhook/subscribers/health"
	"spendhook/subscribers/listing"
)

// What the API asks of the domain. All methods are safe for concurrent use and
// obey the deadline of their context.

// Subscribers is *subscribers.Service.
type Subscribers interface {
	Create(ctx context.Context, company uuid.UUID, in subscribers.Settings) (subscribers.Subscriber, error)
	Get(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error)
	Update(ctx context.Context, company, id uuid.UUID, in subscribers.Settings) (subscribers.Subscriber, error)
	Delete(ctx context.Context, company, id uuid.UUID, revisions ...string) error
	AddEvent(ctx context.Context, company uuid.UUID, callbackURL, event string) (subscribers.Subscriber, error)
	RemoveEvent(ctx context.Context, company uuid.UUID, callbackURL, event string) error
	RotateSecret(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error)
	Pause(ctx context.Context, company, id uuid.UUID) error
	Resume(ctx context.Context, company, id uuid.UUID) error
}

// Health is *health.Store.
type Health interface {
	Of(ctx context.Context, company uuid.UUID, ids ...uuid.UUID) (map[uuid.UUID]health.Health, error)
}

// SubscriberLists is *listing.Reader.
type SubscriberLists interface {
	List(ctx context.Context, f listing.Filter) (items []subscribers.Subscriber, total int, err error)
}

// Certificates is *certificate.Store: what companies show to receivers.
type Certificates interface {
	Set(ctx context.Context, company uuid.UUID, in certificate.Input) (*certificate.Certificate, error)
	Get(ctx context.Context, company uuid.UUID) (*certificate.Certificate, error)
	Remove(ctx context.Context, company uuid.UUID) error
}

// SigningKeys is *signingkey.Store.
type SigningKeys interface {
	Key(ctx context.Context, company uuid.UUID) (ed25519.PrivateKey, error)
}

// Publisher is *publish.Publisher.
type Publisher interface {
	Accept(ctx context.Context, list []events.Event) ([]publish.Result, error)
}

// Events is *history.Reader.
type Events interface {
	Get(ctx context.Context, ref events.Ref) (events.Stored, error)
	List(ctx context.Context, f history.Filter) (history.Page, error)
}

// Clients is *clients.Store.
type Clients interface {
	List(ctx context.Context, at string, size int) (list []clients.Client, next string, err error)
	Get(ctx context.Context, id string) (clients.Client, error)
	Create(ctx context.Context, r clients.Registration) (client clients.Client, secret string, err error)
	RotateSecret(ctx context.Context, id string, overlap time.Duration) (client clients.Client, secret string, err error)
	SetCertificates(ctx context.Context, id string, list []string) (clients.Client, error)
	SetDisabled(ctx context.Context, id string, disabled bool) (clients.Client, error)
	Delete(ctx context.Context, id string) error
}

// EventTypes is *eventtype.Store.
type EventTypes interface {
	List(ctx context.Context) ([]eventtype.Type, error)
	Get(ctx context.Context, name string) (eventtype.Type, error)
	Put(ctx context.Context, t eventtype.Type, revisions ...string) (kept eventtype.Type, added bool, err error)
	Remove(ctx context.Context, name string, revisions ...string) error
}

// Deliveries reads what became of events, and erases it; it is *store.Store.
type Deliveries interface {
	Delivery(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error)
	List(ctx context.Context, f query.Filter) (query.Page, error)
	OfEvent(ctx context.Context, ref events.Ref) ([]delivery.Delivery, error)
	SumUp(ctx context.Context, refs []events.Ref, f query.Filter) ([]query.EventSummary, error)
	Stats(ctx context.Context, company, subscriber uuid.UUID) (totals.Stats, error)
	Erase(ctx context.Context, ref events.Ref) error
}

// Redelivery makes deliveries happen again; it is *redelivery.Service.
type Redelivery interface {
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

// Dispatcher explains, tests and reads feeds; it is *dispatcher.Dispatcher.
type Dispatcher interface {
	Explain(ctx context.Context, ref events.Ref) ([]dispatcher.Explanation, error)
	Test(ctx context.Context, company, subscriber uuid.UUID) (dispatcher.TestResult, error)
	Feed(ctx context.Context, q dispatcher.FeedRequest) (dispatcher.FeedPage, error)
	AwaitEvent(ctx context.Context, company uuid.UUID, after int64) (arrived bool, err error)
}

// Quarantine is what could not be read; it is *dispatcher.Dispatcher.
type Quarantine interface {
	Quarantined(ctx context.Context, f workqueue.QuarantineFilter) (workqueue.QuarantinePage, error)
	RetryQuarantined(ctx context.Context, e workqueue.Quarantined) error
	DropQuarantined(ctx context.Context, e workqueue.Quarantined) error
}

// Cards is *cards.Store.
type Cards interface {
	Card(ctx context.Context, company, id uuid.UUID) (cards.Card, error)
	Cards(ctx context.Context, f cards.Filter) (cards []cards.Card, total int64, err error)
	CreateCard(ctx context.Context, company uuid.UUID, r cards.Request, once cards.Once) (cards.Card, error)
	SetCardThreshold(ctx context.Context, company, id uuid.UUID, threshold decimal.Decimal) (cards.Card, error)
	LockCard(ctx context.Context, company, id uuid.UUID, lock bool) (cards.Card, error)
	CancelCard(ctx context.Context, company, id uuid.UUID) error
	CancelCards(ctx context.Context, company uuid.UUID, ids []uuid.UUID) ([]cards.CancelResult, error)
	CardJob(ctx context.Context, company, id uuid.UUID) (cards.Job, error)
}

// CardJobs stores a bulk creation of cards and queues its items. Submit
// returns what cards.Store.CreateCardJob does.
type CardJobs interface {
	Submit(ctx context.Context, company uuid.UUID, requests []cards.Request, once cards.Once) (cards.Job, error)
}

// Spend reads the rest of the spend data; it is *spend.Store.
type Spend interface {
	Reimbursements(ctx context.Context, f spend.ReimbursementFilter) (list []spend.Reimbursement, total int64, err error)
	Location(ctx context.Context, company, id uuid.UUID) (spend.Location, error)
	Locations(ctx context.Context, f spend.LocationFilter) (list []spend.Location, total int64, err error)
	CurrentStatement(ctx context.Context, company uuid.UUID) (spend.Statement, error)
	StatementOf(ctx context.Context, company uuid.UUID, month, year int) (spend.Statement, error)
}

// Sessions is *session.Store: the links and sessions of the web console.
type Sessions interface {
	CreateLink(ctx context.Context, g session.Grant) (session.Link, error)
	List(ctx context.Context, f session.Filter) (session.Page, error)
	End(ctx context.Context, company *uuid.UUID, id uuid.UUID, asker *session.Asker) (session.Session, error)
}

// Idempotency is *idempotency.Store.
type Idempotency interface {
	Begin(ctx context.Context, scope, key string, fingerprint [32]byte) (*idempotency.Response, error)
	Finish(ctx context.Context, scope, key string, fingerprint [32]byte, answer idempotency.Response) error
	Abort(ctx context.Context, scope, key string, fingerprint [32]byte) error
}

// Tokens is *tokens.Endpoint. The error is always an *tokens.Error.
type Tokens interface {
	Issue(ctx context.Context, r tokens.Request) (tokens.Token, error)
}
