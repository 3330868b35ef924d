package filter

import (
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/events"
)

// Event is an event for the evaluation of expressions. Its metadata is decoded once, when the
// first expression needs it. It is not safe for concurrent use.
type Event struct {
	of     events.Event
	values map[string]any // nil until it is decoded
	err    error
}

// NewEvent takes an event, which must not change.
func NewEvent(e events.Event) *Event { return &Event{of: e} }

// Type is the event's type.
func (e *Event) Type() string { return e.of.Type }

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
	e.values = map[string]any{
		"id":          types.String(e.of.ID),
		"event":       types.String(e.of.Type),
		"companyUuid": types.String(e.of.CompanyUUID.String()),
		"timestamp":   types.Timestamp{Time: e.of.Timestamp},
		"metadata":    types.DefaultTypeAdapter.NativeToValue(metadata),
	}
	return nil
}

// numbers reads a JSON number as an int64 if it is one, else as a decimal.
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

// maxDigits bounds the digits and the exponent of a decimal, and so the time of a comparison.
const maxDigits = 400

var decimalType = cel.ObjectType("decimal", traits.ComparerType)

// decimal is an exact number in CEL.
type decimal struct{ value *big.Rat }

func parseDecimal(text string) (decimal, error) {
	digits, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if n, err := strconv.Atoi(exponent); exponent != "" && (err != nil || n > maxDigits || n < -maxDigits) || len(digits) > maxDigits {
		return decimal{}, fmt.Errorf("a decimal has more than %d digits", maxDigits)
	}
	if strings.Trim(digits, "+-.0123456789") != "" { // big.Rat also reads fractions and other bases
		return decimal{}, fmt.Errorf("%.40q is not a decimal number", text)
	}
	value, ok := new(big.Rat).SetString(text)
	if !ok {
		return decimal{}, fmt.Errorf("%.40q is not a decimal number", text)
	}
	return decimal{value}, nil
}

func toDecimal(v ref.Val) ref.Val {
	switch v := v.(type) {
	case decimal:
		return v
	case types.Int:
		return decimal{new(big.Rat).SetInt64(int64(v))}
	case types.String:
		d, err := parseDecimal(string(v))
		if err != nil {
			return types.WrapErr(err)
		}
		return d
	}
	return types.MaybeNoSuchOverloadErr(v)
}

// Compare is for CEL. The other value may be a decimal or an int.
func (d decimal) Compare(other ref.Val) ref.Val {
	switch other := other.(type) {
	case decimal:
		return types.Int(d.value.Cmp(other.value))
	case types.Int:
		return types.Int(d.value.Cmp(new(big.Rat).SetInt64(int64(other))))
	}
	return types.MaybeNoSuchOverloadErr(other)
}

// Equal is for CEL.
func (d decimal) Equal(other ref.Val) ref.Val { return types.Bool(d.Compare(other) == types.Int(0)) }

// ConvertToType is for CEL: type(x) and string(x).
func (d decimal) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.TypeType:
		return decimalType
	case types.StringType:
		return types.String(d.value.RatString())
	}
	return types.NewErr("a decimal cannot be converted to %s", t.TypeName())
}

// ConvertToNative is for CEL.
func (d decimal) ConvertToNative(reflect.Type) (any, error) { return d.value, nil }

// Type is for CEL.
func (d decimal) Type() ref.Type { return decimalType }

// Value is for CEL.
func (d decimal) Value() any { return d.value }
