package mapping

import (
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// number is a JSON number that neither an int nor a double has all digits of. It can be copied, and compared for
// equality.
type number struct{ text string }

var numberType = types.NewOpaqueType("number")

func newNumber(text string) ref.Val {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(n)
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && decimal(strconv.FormatFloat(f, 'e', -1, 64)) == decimal(text) {
		return types.Double(f)
	}
	return number{text}
}

// decimal writes a JSON number in the one form that all numbers of its value have, such as -12e-1. The exponent of a
// number with one of more than 18 digits stays as it is.
func decimal(text string) string {
	text = strings.ToLower(text)
	mantissa, exponent, _ := strings.Cut(text, "e")
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return "0"
	}
	sign := ""
	if negative {
		sign = "-"
	}
	power := int64(0)
	if exponent != "" {
		var err error
		if power, err = strconv.ParseInt(exponent, 10, 64); err != nil || len(exponent) > 19 {
			return text
		}
	}
	trimmed := strings.TrimRight(digits, "0")
	power += int64(len(digits)-len(trimmed)) - int64(len(fraction))
	return sign + trimmed + "e" + strconv.FormatInt(power, 10)
}

func (n number) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }

func (n number) ConvertToType(t ref.Type) ref.Val { return convert(n, t) }

// Equal is never true for an int or a double: they would have all digits.
func (n number) Equal(other ref.Val) ref.Val {
	o, ok := other.(number)
	return types.Bool(ok && decimal(n.text) == decimal(o.text))
}

func (n number) Type() ref.Type { return numberType }

func (n number) Value() any { return n.text }
