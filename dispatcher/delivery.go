// Package dispatcher turns accepted events into deliveries and attempts each
// one until it is delivered, dead or cancelled. It fans events out to the
// matching subscribers, signs and POSTs, backs off, isolates endpoints from
// each other, keeps the dead letters, replays them, and takes over what a
// crashed replica had in flight. docs/delivery-states.md draws the states.
package dispatcher

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
)

// Status is where a delivery stands. docs/delivery-states.md draws every move
// between them; a status that is not there does not exist.
type Status string

// The delivery statuses.
const (
	StatusPending    Status = "PENDING"    // waiting for its first attempt of a run
	StatusDelivering Status = "DELIVERING" // an attempt is under way
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
	ReasonDeferred           = "ENDPOINT_BUSY"
	ReasonInterrupted        = "INTERRUPTED"
	ReasonLocked             = "SECRETS_LOCKED"
	ReasonExpired            = "EVENT_EXPIRED"
	ReasonReplay             = "REPLAY"
	ReasonRecover            = "RECOVER"
)

// Errors a caller branches on.
var (
	// ErrNotFound says that no such delivery, event or job exists in the company.
	ErrNotFound = errors.New("delivery not found")
	// ErrInFlight says that an attempt is under way, so the delivery cannot be retried now.
	ErrInFlight = errors.New("an attempt of this delivery is under way")
	// ErrTesting says that a test of the subscriber is under way.
	ErrTesting = errors.New("a test of this subscriber is under way")
	// ErrSubscriberGone says that the delivery's subscriber was deleted.
	ErrSubscriberGone = errors.New("the subscriber was deleted")
	// ErrSubscriberDisabled says that the delivery's subscriber is disabled; enable it first.
	ErrSubscriberDisabled = errors.New("the subscriber is disabled")
	// ErrBadCursor says that a paging cursor was not made by this list.
	ErrBadCursor = errors.New("the cursor is not valid")
)

// Attempt is one POST of a delivery.
type Attempt struct {
	Number       int // 1 for the first attempt of the delivery, replays count on
	StartedAt    time.Time
	Duration     time.Duration
	StatusCode   int // 0 when no response came
	Error        webhook.ErrorClass
	ResponseBody []byte // of a failure: at most the first 1 KiB; a success keeps none
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

// ref names one delivery in Redis: event reference and subscriber.
type ref struct {
	events.Ref
	Subscriber uuid.UUID
}

func (r ref) String() string { return r.Ref.String() + "/" + r.Subscriber.String() }

// parseDeliveryID splits a public delivery id of a company.
func parseDeliveryID(company uuid.UUID, id string) (ref, error) {
	id, sub, _ := strings.Cut(id, ".")
	event, err := events.ParseRef(events.Ref{Company: company, ID: id}.String())
	if err != nil {
		return ref{}, ErrNotFound
	}
	u, err := uuid.Parse(sub)
	if err != nil {
		return ref{}, ErrNotFound
	}
	return ref{Ref: event, Subscriber: u}, nil
}

// parseRef reads the text of a delivery reference.
func parseRef(s string) (ref, error) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return ref{}, fmt.Errorf("delivery reference %q has no subscriber", s)
	}
	e, err := events.ParseRef(s[:i])
	if err != nil {
		return ref{}, err
	}
	u, err := uuid.Parse(s[i+1:])
	if err != nil {
		return ref{}, fmt.Errorf("delivery reference %q: %w", s, err)
	}
	return ref{Ref: e, Subscriber: u}, nil
}
