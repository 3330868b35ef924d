package delivery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
	"spendhook/internal/tracing"
)

// maxAttemptLog bounds the attempts kept with a delivery: two full runs of the
// default schedule.
const maxAttemptLog = 20

// Record is a delivery as Redis keeps it: `<status letter><version>|<json>`.
// The letter and the version stand outside the JSON so that the scripts can
// compare and move a delivery without parsing it.
type Record struct {
	Status  Status `json:"-"`
	Version int64  `json:"-"`

	EventType string    `json:"e"`
	Created   int64     `json:"c"`           // unix ms
	Updated   int64     `json:"u"`           // unix ms
	Due       int64     `json:"n,omitzero"`  // unix ms of the next attempt; 0: none
	Count     int       `json:"k,omitzero"`  // attempts made, ever
	Step      int       `json:"s,omitzero"`  // failures in the current run of the schedule
	Reason    string    `json:"r,omitempty"` // see the Reason constants
	Attempts  []Attempt `json:"a,omitempty"` // oldest first, the latest maxAttemptLog of them

	Unknown jsontext.Value `json:",embed"` // what a newer release wrote
}

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

	Unknown jsontext.Value `json:",embed"` // as of a Record
}

var statusLetters = map[Status]byte{
	StatusPending: 'P', StatusRetrying: 'R',
	StatusDelivered: 'D', StatusDead: 'X', StatusCancelled: 'C',
}

var letterStatuses = func() map[byte]Status {
	m := make(map[byte]Status, len(statusLetters))
	for s, l := range statusLetters {
		m[l] = s
	}
	return m
}()

// NewRecord is a delivery of an event before its first attempt.
func NewRecord(e events.Stored) *Record {
	return &Record{Status: StatusPending, EventType: e.Type, Created: e.AcceptedAt.UnixMilli()}
}

// encode writes the record under its next version.
func (r *Record) encode() (string, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode delivery record: %w", err)
	}
	out := make([]byte, 0, len(body)+8)
	out = append(out, statusLetters[r.Status])
	out = strconv.AppendInt(out, r.Version+1, 10)
	out = append(out, '|')
	return string(append(out, body...)), nil
}

// expects is the version the next write must find; "" when the record is new.
func (r *Record) expects() string {
	if r.Version == 0 {
		return ""
	}
	return strconv.FormatInt(r.Version, 10)
}

// Decode reads what encode wrote.
func Decode(s string) (*Record, error) {
	head, body, ok := strings.Cut(s, "|")
	if !ok || len(head) < 2 {
		return nil, fmt.Errorf("delivery record has no header")
	}
	status, ok := letterStatuses[head[0]]
	if !ok {
		return nil, fmt.Errorf("delivery record has status letter %q", head[0])
	}
	version, err := strconv.ParseInt(head[1:], 10, 64)
	if err != nil || version < 1 {
		return nil, fmt.Errorf("delivery record has version %q", head[1:])
	}
	r := &Record{Status: status, Version: version}
	if err := json.Unmarshal([]byte(body), r); err != nil {
		return nil, fmt.Errorf("decode delivery record: %w", err)
	}
	return r, nil
}

// waiting is the status of a delivery that waits for an attempt.
func (r *Record) waiting() Status {
	if r.Step > 0 {
		return StatusRetrying
	}
	return StatusPending
}

// log appends an attempt, keeping the latest maxAttemptLog, and the answer of
// this one alone, if it failed.
func (r *Record) log(res Result) {
	r.Count++
	r.Attempts = slices.Clone(r.Attempts)
	for i := range r.Attempts {
		r.Attempts[i].ResponseBody = nil
	}
	r.Attempts = append(r.Attempts, NewAttempt(r.Count, res))
	keepSent(r.Attempts)
	if extra := len(r.Attempts) - maxAttemptLog; extra > 0 {
		r.Attempts = r.Attempts[extra:]
	}
}

// NewAttempt is what is kept of the attempt with a number: of its answer, that to a
// failure.
func NewAttempt(number int, res Result) Attempt {
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

// Has reports whether an attempt is in the log. There is only one at a time, so
// no other began in the same moment.
func (r *Record) Has(res Result) bool {
	return slices.ContainsFunc(r.Attempts, func(a Attempt) bool {
		return a.StartedAt == res.StartedAt.UnixMilli() && a.DurationMs == res.Duration.Milliseconds() && a.StatusCode == res.StatusCode && a.Error == res.Class
	})
}

// TraceID is the trace that the attempt is part of; "" when it is of none.
func (a *Attempt) TraceID() string { return tracing.TraceIDOf(a.Trace) }

func msTime(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
