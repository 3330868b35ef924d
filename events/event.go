// Package events defines an event: its record, its reference, its validation, and its stored form
// once it is accepted. The packages below accept events, store them and read them back. None of
// them imports subscribers or deliveries.
package events

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events/eventtype"
	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
	"spendhook/internal/timestamp"
	"spendhook/internal/tracing"
)

// OwnPrefix begins the ids of events that the daemon makes itself: operational events, and results of card
// creations. Emitters cannot use it, or they could take the id of an event that is still to come.
const OwnPrefix = "spendhook-"

// Event is what a source system reports. Decode it with
// github.com/go-json-experiment/json, whose options (such as
// RejectUnknownMembers) apply inside it, and encode it with Body.
type Event struct {
	ID          string    // 1..128 of [A-Za-z0-9_-], unique within the company
	CompanyUUID uuid.UUID // whose subscribers get the event
	Type        string    // [A-Za-z0-9][A-Za-z0-9_.:-]{0,127}; "event" in JSON
	Timestamp   time.Time // set by the source; millisecond precision
	// Metadata is a JSON object as it was sent; nil stands for {}.
	Metadata     jsontext.Value
	ErrorCode    string // "": not in the body
	ErrorMessage string // "": not in the body

	// Trace is the span in which the event was sent. It is stored beside the record and is
	// not part of it: the same event sent again in another span is a duplicate.
	Trace tracing.Parent
}

// wire is the JSON of an event: the record of section 6 of the interface specification.
type wire struct {
	ID           string         `json:"id"`
	CompanyUUID  uuid.UUID      `json:"companyUuid"`
	Type         string         `json:"event"`
	Timestamp    instant        `json:"timestamp"`
	Metadata     jsontext.Value `json:"metadata"`
	ErrorCode    string         `json:"errorCode,omitzero"`
	ErrorMessage string         `json:"errorMessage,omitzero"`
}

// UnmarshalJSONFrom reads one record. The timestamp may be an RFC 3339 string
// or a number of epoch milliseconds and is kept in UTC, cut to milliseconds.
// It checks only the JSON types; Validate checks the values.
func (e *Event) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	var w wire
	if err := json.UnmarshalDecode(dec, &w); err != nil {
		return err
	}
	*e = Event{
		ID: w.ID, CompanyUUID: w.CompanyUUID, Type: w.Type, Timestamp: time.Time(w.Timestamp),
		Metadata: w.Metadata, ErrorCode: w.ErrorCode, ErrorMessage: w.ErrorMessage,
	}
	if e.Metadata.Kind() == jsontext.KindNull {
		e.Metadata = nil
	}
	return nil
}

// Body is the canonical record: the names in the order of wire,
// metadata members sorted as in RFC 8785 section 3.2.3, shortest strings, no
// white space, number literals as they were sent. Events with the same content have
// the same body. Exactly these bytes are stored, signed and sent. It fails on metadata
// that is not JSON and on text that is not UTF-8.
func (e *Event) Body() ([]byte, error) {
	w := wire{
		ID: e.ID, CompanyUUID: e.CompanyUUID, Type: e.Type, Timestamp: instant(e.Timestamp),
		Metadata: e.Metadata, ErrorCode: e.ErrorCode, ErrorMessage: e.ErrorMessage,
	}
	if w.Metadata == nil {
		w.Metadata = jsontext.Value("{}")
	}
	body, err := json.Marshal(&w, jsontext.ReorderRawObjects(true))
	if err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	return body, nil
}

// ParseBody reads back what Body wrote. An unknown member is an error.
func ParseBody(body []byte) (Event, error) {
	var e Event
	if err := json.Unmarshal(body, &e, json.RejectUnknownMembers(true)); err != nil {
		return Event{}, fmt.Errorf("decode event: %w", err)
	}
	return e, nil
}

// instant is written as RFC 3339 in UTC with milliseconds.
type instant time.Time

// MarshalJSONTo is part of encoding a body.
func (t instant) MarshalJSONTo(enc *jsontext.Encoder) error {
	return enc.WriteToken(jsontext.String(time.Time(t).UTC().Format("2006-01-02T15:04:05.000Z")))
}

// UnmarshalJSONFrom is part of decoding a record; null leaves the zero time.
func (t *instant) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() == jsontext.KindNull {
		*t = instant{}
		return dec.SkipValue()
	}
	parsed, err := timestamp.Decode(dec)
	*t = instant(parsed.Truncate(time.Millisecond))
	return err
}

const (
	maxErrorCode    = 128       // bytes
	maxErrorMessage = 4096      // bytes
	maxDepth        = 63        // levels of metadata: an event may have 64
	maxMetadata     = 256 << 10 // bytes, as sent
	// maxFuture is how far a timestamp may be ahead of now. It is less than layout.Grace: when the
	// key of an event expires, the event must be refused as too old.
	maxFuture = 5 * time.Minute
)

// Validate returns all problems of e together, as an *invalid.Error. Its timestamp may be as old
// as retention; a nil catalogue allows every type. Codes beside REQUIRED, INVALID and TOO_LONG:
// EVENT_TOO_OLD, EVENT_IN_FUTURE, UNKNOWN_EVENT_TYPE, TOO_DEEP.
func (e *Event) Validate(now time.Time, retention time.Duration, catalogue *eventtype.Catalogue) error {
	problems := &invalid.Error{}
	e.checkNames(problems, catalogue)
	e.checkTime(problems, now, retention)
	e.checkMetadata(problems)
	checkLength(problems, "errorCode", e.ErrorCode, maxErrorCode)
	checkLength(problems, "errorMessage", e.ErrorMessage, maxErrorMessage)
	return problems.OrNil()
}

func (e *Event) checkNames(problems *invalid.Error, catalogue *eventtype.Catalogue) {
	switch {
	case e.ID == "":
		problems.Add("id", "REQUIRED", "is required")
	case !validID(e.ID):
		problems.Add("id", "INVALID", "must be 1 to 128 of A-Z, a-z, 0-9, _ and -")
	}
	if e.CompanyUUID == uuid.Nil {
		problems.Add("companyUuid", "REQUIRED", "is required")
	}
	catalogue.Check(problems, "event", e.Type)
}

func (e *Event) checkTime(problems *invalid.Error, now time.Time, retention time.Duration) {
	switch {
	case e.Timestamp.IsZero():
		problems.Add("timestamp", "REQUIRED", "is required, and must be later than 0001-01-01T00:00:00Z")
	case e.Timestamp.Before(now.Add(-retention)):
		problems.Add("timestamp", "EVENT_TOO_OLD", "is older than the retention time of %s", retention)
	case e.Timestamp.After(now.Add(maxFuture)):
		problems.Add("timestamp", "EVENT_IN_FUTURE", "is more than %s ahead of this server's clock", maxFuture)
	}
}

func (e *Event) checkMetadata(problems *invalid.Error) {
	switch {
	case e.Metadata == nil:
	case len(e.Metadata) > maxMetadata:
		problems.Add("metadata", "TOO_LONG", "is longer than %d bytes", maxMetadata)
	case e.Metadata.Kind() != jsontext.KindBeginObject:
		problems.Add("metadata", "INVALID", "must be a JSON object")
	case syntax.NestsDeeper(e.Metadata, maxDepth):
		problems.Add("metadata", "TOO_DEEP", "is nested more than %d deep", maxDepth)
	}
}

func checkLength(problems *invalid.Error, field, text string, limit int) {
	if len(text) > limit {
		problems.Add(field, "TOO_LONG", "is longer than %d bytes", limit)
	}
}
