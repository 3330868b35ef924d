package expression

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/apd/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
)

// value is nil, bool, string, *apd.Decimal, float64, time.Time, time.Duration, *list, *object, or an
// error in place of a value that cannot be used.
type value = any

// list is a list. Its weight is that of all that it contains, so the time of a comparison is
// known before it begins, although lists can share their elements.
type list struct {
	items  []value
	weight int
}

// object is a map. Only strings are keys.
type object struct {
	fields map[string]value
	weight int
}

const (
	valueBytes = 16 // of a value in a list
	stepBytes  = 64 // bytes that are compared or copied in one step
)

func weight(v value) int {
	switch v := v.(type) {
	case string:
		return 1 + len(v)/stepBytes
	case *list:
		return v.weight
	case *object:
		return v.weight
	}
	return 1
}

// addWeight stops at more than a whole evaluation: a list doubled 55 times would overflow.
func addWeight(a, b int) int { return min(a+b, maxSteps+1) }

// Event is an event for the evaluation of expressions. Its metadata is decoded once, when the
// first expression that reads it is evaluated. It is not safe for concurrent use.
type Event struct {
	of       events.Event
	metadata value // nil until it is decoded
	err      error
}

// NewEvent takes an event, which must not change.
func NewEvent(e events.Event) *Event { return &Event{of: e} }

// Type is the event's type.
func (e *Event) Type() string { return e.of.Type }

var fields = map[string]func(*Event) value{
	"id":           func(e *Event) value { return e.of.ID },
	"event":        func(e *Event) value { return e.of.Type },
	"companyUuid":  func(e *Event) value { return e.of.CompanyUUID.String() },
	"errorCode":    func(e *Event) value { return e.of.ErrorCode },
	"errorMessage": func(e *Event) value { return e.of.ErrorMessage },
	"timestamp":    func(e *Event) value { return e.of.Timestamp },
	"metadata":     func(e *Event) value { return e.metadata },
}

func (e *Event) decode() error {
	if e.metadata != nil || e.err != nil {
		return e.err
	}
	metadata := any(map[string]any{})
	if len(e.of.Metadata) > 0 {
		if err := json.Unmarshal(e.of.Metadata, &metadata, numbers); err != nil {
			e.err = fmt.Errorf("metadata: %w", err)
			return e.err
		}
	}
	e.metadata = weighed(metadata)
	return nil
}

func weighed(v any) value {
	switch v := v.(type) {
	case []any:
		l := &list{items: v, weight: 1}
		for i, item := range v {
			v[i] = weighed(item)
			l.weight = addWeight(l.weight, weight(v[i]))
		}
		return l
	case map[string]any:
		o := &object{fields: v, weight: 1}
		for key, field := range v {
			v[key] = weighed(field)
			o.weight = addWeight(o.weight, weight(key)+weight(v[key]))
		}
		return o
	}
	return v
}

// numbers reads a JSON number as a decimal. If it is none, only expressions that use it fail.
var numbers = json.WithUnmarshalers(json.UnmarshalFromFunc(func(d *jsontext.Decoder, v *any) error {
	if d.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	text, err := d.ReadValue()
	if err != nil {
		return err
	}
	number, err := parseDecimal(string(text))
	if *v = number; err != nil {
		*v = err
	}
	return nil
}))

const (
	maxDigits   = 34 // as decimal128 of IEEE 754
	maxExponent = 400
	maxText     = 500 // characters of a number
)

var decimals = apd.Context{
	Precision: maxDigits, MaxExponent: maxExponent, MinExponent: -maxExponent, Traps: apd.DefaultTraps, Rounding: apd.RoundHalfEven,
}

// parseDecimal does not round: a number of more digits is refused.
func parseDecimal(text string) (*apd.Decimal, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("a number has more than %d characters", maxText)
	}
	if strings.Trim(text, "+-.0123456789eE") != "" { // apd also reads Infinity and NaN
		return nil, fmt.Errorf("%.40q is not a decimal number", text)
	}
	d, _, err := apd.NewFromString(text)
	if err != nil {
		return nil, fmt.Errorf("%.40q is not a decimal number of at most %d digits", text, maxDigits)
	}
	d.Reduce(d)
	if size := d.NumDigits() + int64(d.Exponent); d.NumDigits() > maxDigits || size > maxExponent || size < -maxExponent {
		return nil, fmt.Errorf("%.40q has more than %d digits or an exponent beyond %d", text, maxDigits, maxExponent)
	}
	return d, nil
}

func kind(v value) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "bool"
	case string:
		return "string"
	case *apd.Decimal:
		return "number"
	case float64:
		return "double"
	case time.Time:
		return "timestamp"
	case time.Duration:
		return "duration"
	case *list:
		return "list"
	}
	return "map"
}

func noOverload(function string, args ...value) error {
	kinds := make([]string, len(args))
	for i, v := range args {
		kinds[i] = kind(v)
	}
	return fmt.Errorf("no such overload: %s of %s", function, strings.Join(kinds, " and "))
}

func noKey(name string) error { return fmt.Errorf("no such key: %.100s", name) }
