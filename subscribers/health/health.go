// Package health keeps the health of subscribers' endpoints: their failures in a row, whether
// they are paused, and their recent changes.
package health

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// The states of Health; there are no others.
const (
	stateHealthy = "healthy"
	// StateFailing is that of an endpoint after Policy.FailingAfter failures in a row.
	StateFailing = "failing"
)

// Health is the health of a subscriber's endpoint, whether the subscriber is enabled or not.
// FailingSince is the first failure since the last success; nil when there is none. PausedAt is nil
// and PausedReason is empty while the subscriber is not paused.
type Health struct {
	State                       string // healthy or failing
	FailingSince, LastSuccessAt *time.Time
	ConsecutiveFailures         int64
	Error                       string // the class of the last attempt, if it failed; a Transition does not have it
	PausedAt                    *time.Time
	PausedReason                string // MANUAL or DEAD
}

// Sample summarises attempts to an endpoint: whether any succeeded, and how many failed after
// the last success (without a success: all failures).
type Sample struct {
	Company, Subscriber uuid.UUID
	Success             bool
	TrailingFailures    int
	Error               string // the class of the last failure
	At                  time.Time
	DisableAfter        time.Duration // the least for this subscriber; 0: as the Policy says
}

// Policy says when an endpoint is failing, and when its subscriber is to be disabled.
type Policy struct {
	FailingAfter int           // failures in a row; 0 means 4
	DisableAfter time.Duration // time since the first failure; 0 means 5 days
}

// Kind says what a sample changed.
type Kind string

// The kinds of a Transition; there are no others.
const (
	None      Kind = "none"
	Failing   Kind = "failing"   // the FailingAfter-th failure in a row
	Recovered Kind = "recovered" // the first success after Failing
	Expired   Kind = "expired"   // has been failing for DisableAfter: disable the subscriber
)

// Transition is the effect of one sample on the health of a subscriber.
type Transition struct {
	Company, Subscriber uuid.UUID
	Kind                Kind
	Health              Health
	Err                 error // why the sample may not be recorded; then Kind is None
}

func (sample Sample) transition(reply []string, err error) Transition {
	t := Transition{Company: sample.Company, Subscriber: sample.Subscriber, Kind: None}
	if err == nil && len(reply) != 5 {
		err = fmt.Errorf("%d values in the reply", len(reply))
	}
	if err != nil {
		t.Err = fmt.Errorf("record health: %w", err)
		return t
	}
	t.Kind, t.Health = Kind(reply[0]), newHealth(reply[1], reply[2], reply[3], reply[4])
	return t
}

// newHealth decodes the texts of record.lua; "" means that there is no value yet.
func newHealth(state, fails, since, last string) Health {
	if state == "" {
		state = stateHealthy
	}
	count, _ := strconv.ParseInt(fails, 10, 64)
	return Health{State: state, ConsecutiveFailures: count, FailingSince: parseMillis(since), LastSuccessAt: parseMillis(last)}
}

func parseMillis(text string) *time.Time {
	ms, _ := strconv.ParseInt(text, 10, 64)
	if ms == 0 {
		return nil
	}
	return new(time.UnixMilli(ms).UTC())
}
