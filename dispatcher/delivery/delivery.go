// Package delivery defines a delivery: its reference, its record, its status, and the transitions
// between statuses. Its functions are pure. The packages below it store and read deliveries.
package delivery

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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
	StatusDead       Status = "DEAD"       // no more attempts: the schedule is used up, or the receiver ended it; kept as a dead letter
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
	ReasonStopped            = "STOPPED_BY_RECEIVER"
	ReasonTransform          = "TRANSFORM_FAILED"
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
	if d.Due == 0 || !d.Status.Live() || d.Status == StatusDelivering || d.Reason == ReasonPaused || d.Reason == ReasonSubscriberDisabled {
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
	event := events.Ref{Company: company, ID: id}
	u, err := uuid.Parse(sub)
	if err != nil || !event.Valid() {
		return Ref{}, ErrNotFound
	}
	return Ref{Ref: event, Subscriber: u}, nil
}

// Record is a delivery as Redis keeps it: `<status letter><version>|<json>`.
// The letter and the version are outside the JSON, so that the scripts need not parse it.
type Record struct {
	Status  Status `json:"-"`
	Version int64  `json:"-"`

	OrderKey  string            `json:"o,omitzero"` // subscribers.Subscriber.OrderKey; scripts read it, so it is the first field
	EventType string            `json:"e"`
	Created   int64             `json:"c"`           // unix ms
	Previous  int64             `json:"p,omitzero"`  // number of the event before for this subscriber; 0: unknown
	Updated   int64             `json:"u"`           // unix ms
	Due       int64             `json:"n,omitzero"`  // unix ms of the next attempt; 0: none
	Count     int               `json:"k,omitzero"`  // attempts, over all runs of the schedule
	Step      int               `json:"s,omitzero"`  // failures in the current run of the schedule
	Reason    string            `json:"r,omitempty"` // see the Reason constants
	Attempts  []attempt.Attempt `json:"a,omitempty"` // the latest attempts, oldest first

	Unknown jsontext.Value `json:",embed"` // what a newer release wrote
}

// letters are the first bytes of stored records, in the order of storedStatuses.
const letters = "PRDXC"

var storedStatuses = []Status{StatusPending, StatusRetrying, StatusDelivered, StatusDead, StatusCancelled}

// NewRecord is a delivery of an event before its first attempt. orderKey is that of its subscriber for the event.
func NewRecord(e events.Stored, orderKey string) *Record {
	return &Record{Status: StatusPending, OrderKey: orderKey, EventType: e.Type, Created: e.AcceptedAt.UnixMilli()}
}

// Encode writes the record under its next version.
func (r *Record) Encode() (string, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode delivery record: %w", err)
	}
	out := make([]byte, 0, len(body)+8)
	out = append(out, letters[slices.Index(storedStatuses, r.Status)])
	out = strconv.AppendInt(out, r.Version+1, 10)
	out = append(out, '|')
	return string(append(out, body...)), nil
}

// Decode reads what Encode wrote.
func Decode(s string) (*Record, error) {
	head, body, ok := strings.Cut(s, "|")
	if !ok || len(head) < 2 {
		return nil, fmt.Errorf("delivery record has no header")
	}
	letter := strings.IndexByte(letters, head[0])
	if letter < 0 {
		return nil, fmt.Errorf("delivery record has unknown status letter %q", head[0])
	}
	version, err := strconv.ParseInt(head[1:], 10, 64)
	if err != nil || version < 1 {
		return nil, fmt.Errorf("delivery record has invalid version %q", head[1:])
	}
	r := &Record{Status: storedStatuses[letter], Version: version}
	if err := json.Unmarshal([]byte(body), r); err != nil {
		return nil, fmt.Errorf("decode delivery record: %w", err)
	}
	return r, nil
}

// Has reports whether the log has an attempt. The start identifies the attempt: a delivery has one
// attempt at a time.
func (r *Record) Has(res attempt.Result) bool {
	return slices.ContainsFunc(r.Attempts, func(a attempt.Attempt) bool {
		return a.StartedAt == res.StartedAt.UnixMilli() && a.DurationMs == res.Duration.Milliseconds() && a.StatusCode == res.StatusCode && a.Error == string(res.Class)
	})
}
