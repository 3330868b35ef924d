package delivery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
)

// Record is a delivery as Redis keeps it: `<status letter><version>|<json>`.
// The letter and the version stand outside the JSON so that the scripts can
// compare and move a delivery without parsing it.
type Record struct {
	Status  Status `json:"-"`
	Version int64  `json:"-"`

	EventType string            `json:"e"`
	Created   int64             `json:"c"`           // unix ms
	Updated   int64             `json:"u"`           // unix ms
	Due       int64             `json:"n,omitzero"`  // unix ms of the next attempt; 0: none
	Count     int               `json:"k,omitzero"`  // attempts made, ever
	Step      int               `json:"s,omitzero"`  // failures in the current run of the schedule
	Reason    string            `json:"r,omitempty"` // see the Reason constants
	Attempts  []attempt.Attempt `json:"a,omitempty"` // oldest first, the latest of them

	Unknown jsontext.Value `json:",embed"` // what a newer release wrote
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

// Encode writes the record under its next version.
func (r *Record) Encode() (string, error) {
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

// Decode reads what Encode wrote.
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

// Has reports whether an attempt is in the log. There is only one at a time, so
// no other began in the same moment.
func (r *Record) Has(res attempt.Result) bool {
	return slices.ContainsFunc(r.Attempts, func(a attempt.Attempt) bool {
		return a.StartedAt == res.StartedAt.UnixMilli() && a.DurationMs == res.Duration.Milliseconds() && a.StatusCode == res.StatusCode && a.Error == string(res.Class)
	})
}
