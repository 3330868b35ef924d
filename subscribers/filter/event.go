package filter

import (
	"errors"
	"fmt"
	"strconv"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
)

// Event is an event for the evaluation of expressions. Its metadata is decoded once, when the
// first expression needs it. It is not safe for concurrent use.
type Event struct {
	of     events.Event
	values map[string]ref.Val // nil until it is decoded
	err    error
}

// NewEvent takes an event, which must not change.
func NewEvent(e events.Event) *Event { return &Event{of: e} }

// Type is the event's type.
func (e *Event) Type() string { return e.of.Type }

var _ cel.Activation = (*Event)(nil)

// ResolveName is for CEL.
func (e *Event) ResolveName(name string) (any, bool) {
	value, ok := e.values[name]
	return value, ok
}

// Parent is for CEL.
func (e *Event) Parent() cel.Activation { return nil }

func (e *Event) decode() error {
	if e.values != nil || e.err != nil {
		return e.err
	}
	metadata := any(map[string]any{})
	if len(e.of.Metadata) > 0 {
		if err := json.Unmarshal(e.of.Metadata, &metadata, numbers); err != nil {
			e.err = fmt.Errorf("metadata: %w", err)
			return e.err
		}
	}
	e.values = map[string]ref.Val{
		"id":          types.String(e.of.ID),
		"event":       types.String(e.of.Type),
		"companyUuid": types.String(e.of.CompanyUUID.String()),
		"timestamp":   types.Timestamp{Time: e.of.Timestamp},
		"metadata":    types.DefaultTypeAdapter.NativeToValue(metadata),
	}
	return nil
}

// numbers reads a JSON number as an int64 or, when it is none, as a decimal.
var numbers = json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, v *any) error {
	if d.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	if whole, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		*v = whole
		return nil
	}
	number, err := parseDecimal(string(text))
	if err != nil {
		*v = types.WrapErr(err) // only expressions that use the value fail
		return nil
	}
	*v = number
	return nil
}))
