package subscribers

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// The states of Health; there are no others.
const (
	StateHealthy  = "healthy"
	StateFailing  = "failing"
	StateDisabled = "disabled"
)

// Health is how a subscriber's endpoint does. FailingSince is the first
// failure since the last success; nil when there is none. PausedAt is nil while it is
// not paused, and PausedReason then empty.
type Health struct {
	State                       string
	FailingSince, LastSuccessAt *time.Time
	ConsecutiveFailures         int64
	PausedAt                    *time.Time
	PausedReason                string // PausedManually or PausedDead
}

// Sample is what was seen of an endpoint: whether any attempt succeeded, and
// how many failed after the last success, or in all without one.
type Sample struct {
	Company, Subscriber uuid.UUID
	Success             bool
	TrailingFailures    int
	At                  time.Time
}

// HealthPolicy says when an endpoint is failing and when it is given up.
type HealthPolicy struct {
	FailingAfter int           // failures in a row; 0 means 4
	DisableAfter time.Duration // since the first of them; 0 means 5 days
}

// TransitionKind says what a sample changed.
type TransitionKind string

// The kinds of a Transition.
const (
	TransitionNone      TransitionKind = "none"
	TransitionFailing   TransitionKind = "failing"   // the FailingAfter-th failure in a row
	TransitionRecovered TransitionKind = "recovered" // a success after that
	TransitionExpired   TransitionKind = "expired"   // failing for DisableAfter: disable it
)

// Transition is what one sample did to the health of a subscriber.
type Transition struct {
	Company, Subscriber uuid.UUID
	Kind                TransitionKind
	Health              Health
	Err                 error // why the sample may not have counted; then Kind is TransitionNone
}

func (sample Sample) transition(reply []string, err error) Transition {
	t := Transition{Company: sample.Company, Subscriber: sample.Subscriber, Kind: TransitionNone}
	if err == nil && len(reply) != 5 {
		err = fmt.Errorf("%d values in the reply", len(reply))
	}
	if err != nil {
		t.Err = fmt.Errorf("record health: %w", err)
		return t
	}
	t.Kind, t.Health = TransitionKind(reply[0]), newHealth(reply[1], reply[2], reply[3], reply[4])
	return t
}

// newHealth reads health.lua's texts; "" is what was never seen.
func newHealth(state, fails, since, last string) Health {
	if state == "" {
		state = StateHealthy
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
