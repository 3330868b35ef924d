// Package delivery keeps deliveries: their records, their states and the lists
// of them. docs/delivery-states.md draws the states. The scripts that write a
// record also move its work, so that both are one step.
package delivery

import (
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
)

// Status is where a delivery stands. docs/delivery-states.md draws every move
// between them; a status that is not there does not exist.
type Status string

// The delivery statuses.
const (
	StatusPending    Status = "PENDING"    // waiting for its first attempt of a run
	StatusDelivering Status = "DELIVERING" // an attempt is under way; derived, never stored
	StatusRetrying   Status = "RETRYING"   // failed at least once, waiting for its next attempt
	StatusDelivered  Status = "DELIVERED"  // acknowledged with a 2xx
	StatusDead       Status = "DEAD"       // the schedule is used up, kept as a dead letter
	StatusCancelled  Status = "CANCELLED"  // its subscriber was deleted before it was delivered
)

// Live reports whether the delivery still has attempts ahead of it.
func (s Status) Live() bool {
	return s == StatusPending || s == StatusDelivering || s == StatusRetrying
}

// Reasons say why a delivery is in its status when the status alone does not.
const (
	ReasonExhausted          = "SCHEDULE_EXHAUSTED"
	ReasonGone               = "ENDPOINT_GONE"
	ReasonSubscriberDeleted  = "SUBSCRIBER_DELETED"
	ReasonSubscriberDisabled = "SUBSCRIBER_DISABLED"
	ReasonBusy               = "ENDPOINT_BUSY"
	ReasonUnreachable        = "ENDPOINT_UNREACHABLE"
	ReasonInterrupted        = "INTERRUPTED"
	ReasonLocked             = "SECRETS_LOCKED"
	ReasonExpired            = "EVENT_EXPIRED"
	ReasonDropped            = "DROPPED_FROM_QUARANTINE"
	ReasonReplay             = "REPLAY"
	ReasonRecover            = "RECOVER"
)

// Errors a caller branches on.
var (
	// ErrNotFound says that no such delivery, event or job exists in the company.
	ErrNotFound = errors.New("delivery not found")
	// ErrInFlight says that an attempt is under way, so the delivery cannot be retried now.
	ErrInFlight = errors.New("an attempt of this delivery is under way")
	// ErrSubscriberGone says that the delivery's subscriber was deleted.
	ErrSubscriberGone = errors.New("the subscriber was deleted")
	// ErrSubscriberDisabled says that the delivery's subscriber is disabled; enable it first.
	ErrSubscriberDisabled = errors.New("the subscriber is disabled")
)

// Attempt is one POST of a delivery.
type Attempt struct {
	Number       int // 1 for the first attempt of the delivery, replays count on
	StartedAt    time.Time
	Duration     time.Duration
	StatusCode   int    // 0 when no response came
	Error        string // the class of the failure; empty: none
	ResponseBody []byte // at most the first 1 KiB, of the last attempt only
}

// Delivery is one event on its way to one subscriber.
type Delivery struct {
	EventID        string
	EventType      string
	CompanyUUID    uuid.UUID
	SubscriberUUID uuid.UUID
	Status         Status
	Reason         string // one of the Reason constants, or empty
	AttemptCount   int
	Attempts       []Attempt // oldest first, the latest maxAttemptLog of them
	CreatedAt      time.Time
	UpdatedAt      time.Time
	NextAttemptAt  *time.Time // nil when none is scheduled
}

// ID is the delivery's public identifier: event id and subscriber joined by a
// dot, which no event id contains.
func (d *Delivery) ID() string { return d.EventID + "." + d.SubscriberUUID.String() }

// Ref names one delivery: event reference and subscriber.
type Ref struct {
	events.Ref
	Subscriber uuid.UUID
}

// String is "<company>/<event id>/<subscriber>".
func (r Ref) String() string { return r.Ref.String() + "/" + r.Subscriber.String() }

// ParseID splits the public id of a company's delivery; ErrNotFound when it is none.
func ParseID(company uuid.UUID, id string) (Ref, error) {
	id, sub, _ := strings.Cut(id, ".")
	event, err := events.ParseRef(events.Ref{Company: company, ID: id}.String())
	if err != nil {
		return Ref{}, ErrNotFound
	}
	u, err := uuid.Parse(sub)
	if err != nil {
		return Ref{}, ErrNotFound
	}
	return Ref{Ref: event, Subscriber: u}, nil
}
