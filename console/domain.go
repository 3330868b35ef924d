package console

import (
	"context"
	"time"

	"github.com/google/uuid"

	"spendhook/audit"
	"spendhook/console/session"
	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/query"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/tail"
	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/events/history"
	"spendhook/storage/cards/bulk"
	"spendhook/subscribers"
	"spendhook/subscribers/health"
	"spendhook/subscribers/listing"
)

// The parts of the domain that the console uses. All methods are safe for concurrent use, and
// return before the deadline of their context.

// sessionStore is *session.Store.
type sessionStore interface {
	Peek(ctx context.Context, secret string) (session.Grant, error)
	Open(ctx context.Context, link string, v session.Visitor) (opened session.Session, secret string, err error)
	Find(ctx context.Context, secret string, use bool) (session.Session, error)
	End(ctx context.Context, company *uuid.UUID, id uuid.UUID, asker *session.Asker) (session.Session, error)
}

// subscriberService is *subscribers.Service.
type subscriberService interface {
	Get(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error)
	Update(ctx context.Context, company, id uuid.UUID, in subscribers.Settings) (subscribers.Subscriber, error)
	RotateSecret(ctx context.Context, company, id uuid.UUID) (subscribers.Subscriber, error)
	Pause(ctx context.Context, company, id uuid.UUID) error
	Resume(ctx context.Context, company, id uuid.UUID) error
}

// healthStore is *health.Store.
type healthStore interface {
	Of(ctx context.Context, company uuid.UUID, ids ...uuid.UUID) (map[uuid.UUID]health.Health, error)
	Troubled(ctx context.Context, company uuid.UUID) (failing, paused []uuid.UUID, err error)
	History(ctx context.Context, company, id uuid.UUID) ([]health.Change, error)
}

// subscriberRegistry is *registry.Registry, which has copies of the subscribers of a company.
type subscriberRegistry interface {
	List(ctx context.Context, f listing.Filter) (items []subscribers.Subscriber, total int, err error)
	Current(ctx context.Context, company uuid.UUID) ([]*subscribers.Subscriber, error)
}

// eventReader is *history.Reader.
type eventReader interface {
	Get(ctx context.Context, ref events.Ref) (events.Stored, error)
	List(ctx context.Context, f history.Filter) (history.Page, error)
	Pending(ctx context.Context, company uuid.UUID) (int64, error)
}

// eventTypeStore is *eventtype.Store.
type eventTypeStore interface {
	List(ctx context.Context) ([]eventtype.Type, error)
}

// deliveryStore is *store.Store.
type deliveryStore interface {
	Delivery(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error)
	List(ctx context.Context, f query.Filter) (query.Page, error)
	SumUp(ctx context.Context, refs []events.Ref, f query.Filter) ([]query.EventSummary, error)
	StatsOf(ctx context.Context, company uuid.UUID, subs ...uuid.UUID) ([]query.Stats, error)
	CompanyStats(ctx context.Context, company uuid.UUID) (query.Stats, error)
	Busiest(ctx context.Context, company uuid.UUID, n int) ([]uuid.UUID, error)
}

// redeliveryService is *redelivery.Service.
type redeliveryService interface {
	Retry(ctx context.Context, company uuid.UUID, id string) (delivery.Delivery, error)
	Replay(ctx context.Context, ref events.Ref, only []uuid.UUID) ([]delivery.Delivery, error)
	Recover(ctx context.Context, in redelivery.RecoverRequest) (redelivery.Job, error)
	Drop(ctx context.Context, company, subscriber uuid.UUID) (redelivery.Job, error)
	RetryAll(ctx context.Context, in redelivery.RetryRequest) (redelivery.Job, error)
	Job(ctx context.Context, company, id uuid.UUID) (redelivery.Job, error)
	Jobs(ctx context.Context, f redelivery.JobFilter) (redelivery.JobPage, error)
	Cancel(ctx context.Context, company, id uuid.UUID) (redelivery.Job, error)
}

// inspector is *inspect.Inspector.
type inspector interface {
	Explain(ctx context.Context, ref events.Ref) ([]inspect.Explanation, error)
	Test(ctx context.Context, company, subscriber uuid.UUID) (inspect.TestResult, error)
	Sent(ctx context.Context, company uuid.UUID, id string) (inspect.Sent, error)
	VerifySignature(ctx context.Context, company uuid.UUID, id string, timestamp int64, header string) (bool, error)
}

// queueKeeper is *dispatcher.Dispatcher.
type queueKeeper interface {
	Backlog(ctx context.Context) (backlog.Total, error)
	Largest(ctx context.Context, n int) ([]backlog.Company, error)
	Quarantined(ctx context.Context, f quarantine.Filter) (quarantine.Page, error)
	RetryQuarantined(ctx context.Context, e quarantine.Entry) error
	DropQuarantined(ctx context.Context, e quarantine.Entry) error
}

// trafficStore is *traffic.Store.
type trafficStore interface {
	All(ctx context.Context) (traffic.Series, error)
	Company(ctx context.Context, company uuid.UUID) (traffic.Series, error)
	Subscriber(ctx context.Context, company, subscriber uuid.UUID) (traffic.Series, error)
	LastHour(ctx context.Context, company uuid.UUID, subscribers ...uuid.UUID) ([][]traffic.Point, error)
	Worst(ctx context.Context, company *uuid.UUID, n int) (failing, slow []traffic.Ranked, err error)
}

// liveTail is *tail.Tail.
type liveTail interface {
	Watch(company *uuid.UUID, keep func(tail.Entry) bool) (*tail.Viewer, error)
}

// cardJobStore is *bulk.Store; storage.ErrNotFound when there is no such job.
type cardJobStore interface {
	CardJob(ctx context.Context, company, id uuid.UUID) (bulk.Job, error)
}

// auditLog is *audit.Log.
type auditLog interface {
	Record(e audit.Entry)
	List(ctx context.Context, f audit.Filter) (audit.Page, error)
}

// systemStatus returns the state of the daemon's parts.
type systemStatus interface {
	Status(ctx context.Context) (Status, error)
}

// Status is the state of the daemon's parts.
type Status struct {
	Version, Replica string // this one
	Since            time.Time
	Replicas         []string // the living ones, of all
	Redis, Database  Part
	Memory           Memory
	Formats          string // that the partitions are stored in
}

// Part is a component that the daemon depends on.
type Part struct {
	Up       bool
	Problems []string
	Warnings []string
}

// Memory is the memory use of the fullest Redis server and its limits, in bytes. A Limit of 0
// means that the limit is unknown.
type Memory struct{ Used, Limit, HighWater int64 }
