package events

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events/eventtype"
	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
)

const (
	maxErrorCode    = 128  // bytes
	maxErrorMessage = 4096 // bytes
	maxDepth        = 63   // of metadata, itself counted: an event may have 64 levels
)

// Limits bounds what is accepted. The zero value of a duration or size refuses
// everything past it, so set them all; a nil Catalogue allows every type.
type Limits struct {
	Retention   time.Duration // how old a timestamp may be, and how long ids are kept
	MaxFuture   time.Duration // how far ahead of now a timestamp may lie
	MaxMetadata int           // bytes, as sent
	Catalogue   *eventtype.Catalogue
}

// Validate returns all problems of e together, as an *invalid.Error. Codes
// beside REQUIRED, INVALID and TOO_LONG: EVENT_TOO_OLD,
// EVENT_IN_FUTURE, UNKNOWN_EVENT_TYPE, TOO_DEEP.
func (e *Event) Validate(now time.Time, limits Limits) error {
	problems := &invalid.Error{}
	e.checkNames(problems, limits.Catalogue)
	e.checkTime(problems, now, limits)
	e.checkMetadata(problems, limits.MaxMetadata)
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
	switch {
	case e.Type == "":
		problems.Add("event", "REQUIRED", "is required")
	case !syntax.EventType(e.Type):
		problems.Add("event", "INVALID", "must be an upper-case letter, then up to 63 of A-Z, 0-9 and _")
	case !catalogue.Allows(e.Type):
		problems.Add("event", "UNKNOWN_EVENT_TYPE", "is not in the event catalogue")
	}
}

func (e *Event) checkTime(problems *invalid.Error, now time.Time, limits Limits) {
	switch {
	case e.Timestamp.IsZero():
		problems.Add("timestamp", "REQUIRED", "is required")
	case e.Timestamp.Before(now.Add(-limits.Retention)):
		problems.Add("timestamp", "EVENT_TOO_OLD", "is older than the retention time of %s", limits.Retention)
	case e.Timestamp.After(now.Add(limits.MaxFuture)):
		problems.Add("timestamp", "EVENT_IN_FUTURE", "is more than %s ahead of this server's clock", limits.MaxFuture)
	}
}

func (e *Event) checkMetadata(problems *invalid.Error, limit int) {
	switch {
	case e.Metadata == nil:
	case len(e.Metadata) > limit:
		problems.Add("metadata", "TOO_LONG", "is longer than %d bytes", limit)
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
