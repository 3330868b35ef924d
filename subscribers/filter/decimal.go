package filter

import (
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// maxDigits bounds the digits and the exponent of a decimal, and so what comparing it
// takes.
const maxDigits = 400

var decimalType = cel.ObjectType("decimal", traits.ComparerType)

// decimal is an exact number in CEL.
type decimal struct{ value *big.Rat }

func parseDecimal(text string) (decimal, error) {
	digits, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if n, err := strconv.Atoi(exponent); exponent != "" && (err != nil || n > maxDigits || n < -maxDigits) || len(digits) > maxDigits {
		return decimal{}, fmt.Errorf("a decimal has more than %d digits", maxDigits)
	}
	if strings.Trim(digits, "+-.0123456789") != "" { // a fraction, or another base, is none
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

// Compare is for CEL: with another decimal, and with an int.
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
