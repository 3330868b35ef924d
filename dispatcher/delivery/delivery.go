// Package delivery defines a delivery: its name, its record and its status. The packages
// below it change its status, store it and read it.
package delivery

import (
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
)

// Status is the status of a delivery. docs/delivery-states.md draws all statuses and all
// transitions between them.
type Status string

// The delivery statuses.
const (
	StatusPending    Status = "PENDING"    // waiting for its first attempt of a run
	StatusDelivering Status = "DELIVERING" // an attempt is under way; derived, never stored
	StatusRetrying   Status = "RETRYING"   // failed at least once, waiting for its next attempt
	StatusDelivered  Status = "DELIVERED"  // acknowledged with a 2xx
	StatusDead       Status = "DEAD"       // no more attempts: the schedule is used up, or 410; kept as a dead letter
	StatusCancelled  Status = "CANCELLED"  // ended undelivered: see the reasons SUBSCRIBER_DELETED, EVENT_EXPIRED and DROPPED
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
	ReasonHostBusy           = "HOST_BUSY"
	ReasonUnreachable        = "ENDPOINT_UNREACHABLE"
	ReasonRetryAfter         = "RETRY_AFTER"
	ReasonRateLimit          = "RATE_LIMIT"
	ReasonOrder              = "ORDER"
	ReasonPaused             = "PAUSED"
	ReasonInterrupted        = "INTERRUPTED"
	ReasonLocked             = "SECRETS_LOCKED"
	ReasonExpired            = "EVENT_EXPIRED"
	ReasonDropped            = "DROPPED"
	ReasonReplay             = "REPLAY"
	ReasonRecover            = "RECOVER"
)

// Errors that callers check for.
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

// Delivery is one event on its way to one subscriber.
type Delivery struct {
	Ref
	Record
}

// NextAttemptAt is nil when no attempt is scheduled.
func (d *Delivery) NextAttemptAt() *time.Time {
	if d.Due == 0 || !d.Status.Live() || d.Status == StatusDelivering || d.Reason == ReasonPaused {
		return nil
	}
	return new(time.UnixMilli(d.Due).UTC())
}

// LastAttempt is the zero Attempt when there was none.
func (d *Delivery) LastAttempt() attempt.Attempt {
	if len(d.Attempts) == 0 {
		return attempt.Attempt{}
	}
	return d.Attempts[len(d.Attempts)-1]
}

// Ref names one delivery: event reference and subscriber.
type Ref struct {
	events.Ref
	Subscriber uuid.UUID
}

// PublicID identifies the delivery within its company: event id and subscriber
// joined by a dot, which no event id contains.
func (r Ref) PublicID() string { return r.ID + "." + r.Subscriber.String() }

// String is "<company>/<event id>/<subscriber>".
func (r Ref) String() string { return r.Ref.String() + "/" + r.Subscriber.String() }

// ParseID reads the PublicID of a company's delivery; ErrNotFound when it is none.
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
