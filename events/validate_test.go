package events_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/internal/invalid"
)

var (
	company = uuid.MustParse("0190a3b4-0000-7000-8000-000000000001")
	noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

const retention = 7 * 24 * time.Hour

func sorted(s []string) []string { slices.Sort(s); return s }

// newEvent is a valid event at noon.
func newEvent(id string) events.Event {
	return events.Event{ID: id, CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: noon}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	strict := eventtype.NewCatalogue([]eventtype.Type{{Name: "OURS"}}, true)
	quoted := jsontext.Value(`{"a\"\\":"` + strings.Repeat(`[[[\"`, 101) + `"}`)
	for name, tc := range map[string]struct {
		change    func(*events.Event)
		catalogue *eventtype.Catalogue
		want      []string // "field CODE"
	}{
		"valid":                {func(*events.Event) {}, nil, nil},
		"longest":              {func(e *events.Event) { e.ID, e.Type = strings.Repeat("a", 128), strings.Repeat("A", 64) }, nil, nil},
		"every id character":   {func(e *events.Event) { e.ID = "azAZ09_-" }, nil, nil},
		"empty":                {func(e *events.Event) { *e = events.Event{} }, nil, []string{"companyUuid REQUIRED", "event REQUIRED", "id REQUIRED", "timestamp REQUIRED"}},
		"id with a dot":        {func(e *events.Event) { e.ID = "a.b" }, nil, []string{"id INVALID"}},
		"id with a slash":      {func(e *events.Event) { e.ID = "a/b" }, nil, []string{"id INVALID"}},
		"id not ASCII":         {func(e *events.Event) { e.ID = "é" }, nil, []string{"id INVALID"}},
		"id not UTF-8":         {func(e *events.Event) { e.ID = "a\xff" }, nil, []string{"id INVALID"}},
		"id too long":          {func(e *events.Event) { e.ID = strings.Repeat("a", 129) }, nil, []string{"id INVALID"}},
		"type pattern":         {func(e *events.Event) { e.Type = "payment.*" }, nil, []string{"event INVALID"}},
		"type from a dot":      {func(e *events.Event) { e.Type = ".a" }, nil, []string{"event INVALID"}},
		"type too long":        {func(e *events.Event) { e.Type = strings.Repeat("A", 129) }, nil, []string{"event INVALID"}},
		"oldest":               {func(e *events.Event) { e.Timestamp = noon.Add(-retention) }, nil, nil},
		"too old":              {func(e *events.Event) { e.Timestamp = noon.Add(-retention - time.Millisecond) }, nil, []string{"timestamp EVENT_TOO_OLD"}},
		"newest":               {func(e *events.Event) { e.Timestamp = noon.Add(5 * time.Minute) }, nil, nil},
		"in future":            {func(e *events.Event) { e.Timestamp = noon.Add(5*time.Minute + time.Millisecond) }, nil, []string{"timestamp EVENT_IN_FUTURE"}},
		"metadata an array":    {func(e *events.Event) { e.Metadata = jsontext.Value(`[]`) }, nil, []string{"metadata INVALID"}},
		"metadata empty":       {func(e *events.Event) { e.Metadata = jsontext.Value{} }, nil, []string{"metadata INVALID"}},
		"metadata too long":    {func(e *events.Event) { e.Metadata = jsontext.Value(`{"a":"` + strings.Repeat("a", 256<<10) + `"}`) }, nil, []string{"metadata TOO_LONG"}},
		"metadata deepest":     {func(e *events.Event) { e.Metadata = nested(63) }, nil, nil},
		"metadata too deep":    {func(e *events.Event) { e.Metadata = nested(64) }, nil, []string{"metadata TOO_DEEP"}},
		"brackets in a string": {func(e *events.Event) { e.Metadata = quoted }, nil, nil},
		"error fields at limit": {func(e *events.Event) {
			e.ErrorCode, e.ErrorMessage = strings.Repeat("a", 128), strings.Repeat("a", 4096)
		}, nil, nil},
		"error fields too long": {func(e *events.Event) {
			e.ErrorCode, e.ErrorMessage = strings.Repeat("a", 129), strings.Repeat("a", 4097)
		}, nil, []string{"errorCode TOO_LONG", "errorMessage TOO_LONG"}},
		"strict, extra":       {func(e *events.Event) { e.Type = "OURS" }, strict, nil},
		"strict, operational": {func(e *events.Event) { e.Type = eventtype.DeliveryDead }, strict, nil},
		"strict, unknown":     {func(e *events.Event) { e.Type = "THEIRS" }, strict, []string{"event UNKNOWN_EVENT_TYPE"}},
	} {
		e := newEvent("e")
		tc.change(&e)
		if got := codes(e.Validate(noon, retention, tc.catalogue)); !slices.Equal(got, tc.want) {
			t.Errorf("%s: problems %q, want %q", name, got, tc.want)
		}
	}
}

// nested is an object with arrays in it, depth levels in all.
func nested(depth int) jsontext.Value {
	return jsontext.Value(`{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`)
}

// codes lists the problems of an *invalid.Error as "field CODE".
func codes(err error) []string {
	var problems *invalid.Error
	if !errors.As(err, &problems) {
		return nil
	}
	var got []string
	for _, f := range problems.Fields {
		got = append(got, f.Field+" "+f.Code)
	}
	return sorted(got)
}
