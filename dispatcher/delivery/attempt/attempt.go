// Package attempt is one POST of a delivery: what came of it, and what of that is kept
// in the delivery's log.
package attempt

import (
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/tracing"
)

// Result is what came of an attempt.
type Result struct {
	Outcome    Outcome
	StatusCode int    // 0 when no response came
	Class      string // of the failure; empty: none
	Body       []byte // of the answer
	StartedAt  time.Time
	Duration   time.Duration
	RetryAfter time.Duration // how long the receiver asked to wait; 0: it did not
	Sent       http.Header   // what the request was made with; nil when none was
	Waited     Waited
	Timing     Timing
}

// Outcome says what an attempt means for its delivery.
type Outcome int

// The outcomes of an attempt. Those from Interrupted on count as no attempt.
const (
	Failed      Outcome = iota
	Succeeded           // the receiver acknowledged it
	Gone                // the receiver wants no more: 410
	Interrupted         // it was cut short by this daemon
	Locked              // nothing was sent: a secret of the subscriber does not open
)

// maxLog bounds the attempts kept with a delivery: two full runs of the
// default schedule.
const maxLog = 20

// Attempt is one POST of a delivery.
type Attempt struct {
	Number       int    `json:"n"` // 1 for the first attempt of the delivery, replays count on
	StartedAt    int64  `json:"t"` // unix ms
	DurationMs   int64  `json:"d"`
	StatusCode   int    `json:"c,omitzero"`  // 0 when no response came
	Error        string `json:"e,omitempty"` // the class of the failure; empty: none
	ResponseBody []byte `json:"b,omitempty"` // at most the first 1 KiB, of the last attempt only
	Sent         string `json:"h,omitempty"` // its headers, as sentOf has them; empty: as the next attempt
	Waited       Waited `json:"w,omitempty"`
	Timing       Timing `json:"p,omitzero"`
	Trace        string `json:"x,omitempty"` // the traceparent it was sent with; empty: none

	Unknown jsontext.Value `json:",embed"` // what a newer release wrote
}

// New is what is kept of the attempt with a number: of its answer, that to a
// failure.
func New(number int, res Result) Attempt {
	a := Attempt{
		Number: number, StartedAt: res.StartedAt.UnixMilli(), DurationMs: res.Duration.Milliseconds(),
		StatusCode: res.StatusCode, Error: res.Class, Sent: sentOf(res.Sent), Waited: res.Waited, Timing: res.Timing,
	}
	if trace := res.Sent[headerTrace]; len(trace) == 1 { //nolint:staticcheck // it is sent in lower case
		a.Trace = trace[0]
	}
	if res.Outcome != Succeeded {
		a.ResponseBody = res.Body
	}
	return a
}

// Append returns a log with one more attempt: the latest maxLog of them, and the answer
// of this one alone, if it failed.
func Append(log []Attempt, number int, res Result) []Attempt {
	log = slices.Clone(log)
	for i := range log {
		log[i].ResponseBody = nil
	}
	log = append(log, New(number, res))
	keepSent(log)
	return log[max(0, len(log)-maxLog):]
}

// TraceID is the trace that the attempt is part of; "" when it is of none.
func (a *Attempt) TraceID() string { return tracing.TraceIDOf(a.Trace) }
