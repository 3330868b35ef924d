package expression

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/apd/v3"
)

// functions are the functions and operators of CEL but for those that need not evaluate all their
// operands, and matches.
var functions = withParts(map[string]func(r *run, args []value) (value, error){
	"_==_": func(r *run, args []value) (value, error) { return equal(r, args[0], args[1]) },
	"_!=_": func(r *run, args []value) (value, error) {
		same, err := equal(r, args[0], args[1])
		return !same, err
	},
	"_<_":        ordered(func(n int) bool { return n < 0 }),
	"_<=_":       ordered(func(n int) bool { return n <= 0 }),
	"_>_":        ordered(func(n int) bool { return n > 0 }),
	"_>=_":       ordered(func(n int) bool { return n >= 0 }),
	"_+_":        plus,
	"_-_":        minus,
	"_*_":        arithmetic("*", decimals.Mul, func(a, b float64) float64 { return a * b }),
	"_/_":        arithmetic("/", decimals.Quo, func(a, b float64) float64 { return a / b }),
	"_%_":        arithmetic("%", decimals.Rem, math.Mod),
	"-_":         negative,
	"!_":         not,
	"_[_]":       index,
	"@in":        in,
	"size":       size,
	"contains":   strung("contains", strings.Contains),
	"endsWith":   strung("endsWith", strings.HasSuffix),
	"decimal":    toDecimal,
	"double":     toDouble,
	"int":        toWhole,
	"string":     toString,
	"bool":       toBool,
	"timestamp":  toTimestamp,
	"duration":   toDuration,
	"dyn":        func(_ *run, args []value) (value, error) { return args[0], nil },
	"startsWith": strung("startsWith", strings.HasPrefix),
})

func withParts(all map[string]func(*run, []value) (value, error)) map[string]func(*run, []value) (value, error) {
	for name := range parts {
		all[name] = partOf(name)
	}
	return all
}

// equal compares by value. Values of different kinds are not equal, but a number may equal a double.
func equal(r *run, a, b value) (bool, error) {
	if err := r.spend(min(weight(a), weight(b))); err != nil {
		return false, err
	}
	return same(a, b)
}

func same(a, b value) (bool, error) {
	for _, v := range []value{a, b} {
		if err, failed := v.(error); failed {
			return false, err
		}
	}
	switch a := a.(type) {
	case *list:
		b, ok := b.(*list)
		if !ok || len(a.items) != len(b.items) {
			return false, nil
		}
		for i := range a.items {
			if equal, err := same(a.items[i], b.items[i]); !equal || err != nil {
				return false, err
			}
		}
		return true, nil
	case *object:
		b, ok := b.(*object)
		if !ok || len(a.fields) != len(b.fields) {
			return false, nil
		}
		for key, field := range a.fields {
			other, ok := b.fields[key]
			if !ok {
				return false, nil
			}
			if equal, err := same(field, other); !equal || err != nil {
				return false, err
			}
		}
		return true, nil
	case nil:
		return b == nil, nil
	}
	n, ok := compare(a, b)
	return ok && n == 0, nil
}

// unordered is the comparison with a double that is not a number.
const unordered = 2

// compare returns the order of two values, and false if their kinds have none.
func compare(a, b value) (n int, ok bool) {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return strings.Compare(a, b), true
		}
	case bool:
		if b, ok := b.(bool); ok {
			return cmp.Compare(truth(a), truth(b)), true
		}
	case time.Time:
		if b, ok := b.(time.Time); ok {
			return a.Compare(b), true
		}
	case time.Duration:
		if b, ok := b.(time.Duration); ok {
			return cmp.Compare(a, b), true
		}
	case *apd.Decimal:
		if b, ok := b.(*apd.Decimal); ok {
			return a.Cmp(b), true
		}
	}
	x, y, ok := doubles(a, b)
	if ok && (math.IsNaN(x) || math.IsNaN(y)) {
		return unordered, true
	}
	return cmp.Compare(x, y), ok
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// doubles converts a double and a number to two doubles.
func doubles(a, b value) (x, y float64, ok bool) {
	x, aDouble := a.(float64)
	y, bDouble := b.(float64)
	if d, ok := a.(*apd.Decimal); ok && bDouble {
		x, aDouble = float(d), true
	}
	if d, ok := b.(*apd.Decimal); ok && aDouble {
		y, bDouble = float(d), true
	}
	return x, y, aDouble && bDouble
}

func float(d *apd.Decimal) float64 {
	f, _ := d.Float64() // beyond the range it is infinite
	return f
}

func ordered(is func(int) bool) func(*run, []value) (value, error) {
	return func(r *run, args []value) (value, error) {
		if err := r.spend(min(weight(args[0]), weight(args[1]))); err != nil {
			return nil, err
		}
		n, ok := compare(args[0], args[1])
		if !ok {
			return nil, noOverload("comparison", args...)
		}
		return n != unordered && is(n), nil
	}
}

type operation func(d, x, y *apd.Decimal) (apd.Condition, error)

func arithmetic(name string, exact operation, binary func(a, b float64) float64) func(*run, []value) (value, error) {
	return func(r *run, args []value) (value, error) {
		a, ok := args[0].(*apd.Decimal)
		b, both := args[1].(*apd.Decimal)
		if ok && both {
			if err := r.spend(apart(a, b) / stepDigits); err != nil {
				return nil, err
			}
			d := new(apd.Decimal)
			_, err := exact(d, a, b)
			d.Reduce(d) // as parseDecimal does: the same number is the same text
			return d, err
		}
		x, y, ok := doubles(args[0], args[1])
		if !ok {
			return nil, noOverload(name, args...)
		}
		return binary(x, y), nil
	}
}

// stepDigits is how many digits are written in one step.
const stepDigits = 8

// apart is how many digits lie between the last ones of two numbers: a sum is written with all of them before it is rounded.
func apart(a, b *apd.Decimal) int {
	return max(int(a.Exponent)-int(b.Exponent), int(b.Exponent)-int(a.Exponent))
}

var (
	add      = arithmetic("+", decimals.Add, func(a, b float64) float64 { return a + b })
	subtract = arithmetic("-", decimals.Sub, func(a, b float64) float64 { return a - b })
)

func plus(r *run, args []value) (value, error) {
	switch a := args[0].(type) {
	case string:
		if b, ok := args[1].(string); ok {
			if err := r.making(len(a) + len(b)); err != nil {
				return nil, err
			}
			return a + b, nil
		}
	case *list:
		if b, ok := args[1].(*list); ok {
			if err := r.making(valueBytes * (1 + len(a.items) + len(b.items))); err != nil {
				return nil, err
			}
			items := make([]value, 0, len(a.items)+len(b.items))
			return &list{items: append(append(items, a.items...), b.items...), weight: addWeight(a.weight, b.weight)}, nil
		}
	case time.Time:
		if b, ok := args[1].(time.Duration); ok {
			return timeIn(a.Add(b))
		}
	case time.Duration:
		if b, ok := args[1].(time.Duration); ok {
			return durationIn(a, b, a+b)
		}
		if b, ok := args[1].(time.Time); ok {
			return timeIn(b.Add(a))
		}
	}
	return add(r, args)
}

// appendInPlace is + for the list in which a macro gathers its result.
func appendInPlace(r *run, args []value) (value, error) {
	a, ok := args[0].(*list)
	b, both := args[1].(*list)
	if !ok || !both {
		return plus(r, args)
	}
	if err := r.making(2 * valueBytes * len(b.items)); err != nil { // the list grows by doubling
		return nil, err
	}
	return &list{items: append(a.items, b.items...), weight: addWeight(a.weight, b.weight)}, nil
}

func minus(r *run, args []value) (value, error) {
	switch a := args[0].(type) {
	case time.Time:
		switch b := args[1].(type) {
		case time.Duration:
			return timeIn(a.Add(-b))
		case time.Time:
			return a.Sub(b), nil
		}
	case time.Duration:
		if b, ok := args[1].(time.Duration); ok {
			return durationIn(a, -b, a-b)
		}
	}
	return subtract(r, args)
}

func timeIn(t time.Time) (value, error) {
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, errors.New("the timestamp is out of range")
	}
	return t, nil
}

func durationIn(a, b, sum time.Duration) (value, error) {
	if (sum > a) != (b > 0) {
		return nil, errors.New("the duration is out of range")
	}
	return sum, nil
}

func negative(_ *run, args []value) (value, error) {
	switch a := args[0].(type) {
	case *apd.Decimal:
		return new(apd.Decimal).Neg(a), nil
	case float64:
		return -a, nil
	}
	return nil, noOverload("-", args...)
}

func not(_ *run, args []value) (value, error) {
	if b, ok := args[0].(bool); ok {
		return !b, nil
	}
	return nil, noOverload("!", args...)
}

func index(r *run, args []value) (value, error) {
	switch of := args[0].(type) {
	case *list:
		d, ok := args[1].(*apd.Decimal)
		if !ok {
			return nil, noOverload("[]", args...)
		}
		i, err := d.Int64()
		if err != nil || i < 0 || i >= int64(len(of.items)) {
			return nil, fmt.Errorf("no element %s in a list of %d", d, len(of.items))
		}
		return r.loaded(of.items[i])
	case *object:
		name, ok := args[1].(string)
		if !ok {
			return nil, noOverload("[]", args...)
		}
		v, ok := of.fields[name]
		if !ok {
			return nil, noKey(name)
		}
		return r.loaded(v)
	}
	return nil, noOverload("[]", args...)
}

func in(r *run, args []value) (value, error) {
	switch of := args[1].(type) {
	case *list:
		for _, item := range of.items {
			if found, err := equal(r, args[0], item); found || err != nil {
				return found, err
			}
		}
		return false, nil
	case *object:
		name, ok := args[0].(string)
		if ok {
			_, ok = of.fields[name]
		}
		return ok, nil
	}
	return nil, noOverload("in", args...)
}

func size(r *run, args []value) (value, error) {
	var n int
	switch v := args[0].(type) {
	case string:
		if err := r.spend(weight(v)); err != nil {
			return nil, err
		}
		n = utf8.RuneCountInString(v)
	case *list:
		n = len(v.items)
	case *object:
		n = len(v.fields)
	default:
		return nil, noOverload("size", args...)
	}
	return whole(n), nil
}

func whole(n int) value { return apd.New(int64(n), 0) }

func strung(name string, test func(s, part string) bool) func(*run, []value) (value, error) {
	return func(r *run, args []value) (value, error) {
		s, ok := args[0].(string)
		part, both := args[1].(string)
		if !ok || !both {
			return nil, noOverload(name, args...)
		}
		if err := r.spend(weight(s) + weight(part)); err != nil {
			return nil, err
		}
		return test(s, part), nil
	}
}

func toDecimal(_ *run, args []value) (value, error) {
	switch v := args[0].(type) {
	case *apd.Decimal:
		return v, nil
	case string:
		return orError(parseDecimal(v))
	case float64:
		return orError(parseDecimal(strconv.FormatFloat(v, 'g', -1, 64)))
	}
	return nil, noOverload("decimal", args...)
}

// orError keeps a nil pointer out of a value.
func orError(d *apd.Decimal, err error) (value, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// isShort reports whether a text may be read as a value of another type. Reading takes time for each character, and the
// standard library copies what it cannot read into its error.
func isShort(text string) bool { return len(text) <= maxText }

func toDouble(_ *run, args []value) (value, error) {
	switch v := args[0].(type) {
	case *apd.Decimal:
		return float(v), nil
	case float64:
		return v, nil
	case string:
		if isShort(v) {
			if f, err := strconv.ParseFloat(v, 64); err == nil {
				return f, nil
			}
		}
		return nil, fmt.Errorf("%.40q is not a number", v)
	}
	return nil, noOverload("double", args...)
}

// towardsZero rounds as int() does.
var towardsZero = func() apd.Context { c := decimals; c.Rounding, c.Precision = apd.RoundDown, maxExponent; return c }()

func toWhole(r *run, args []value) (value, error) {
	if t, ok := args[0].(time.Time); ok {
		return apd.New(t.Unix(), 0), nil
	}
	v, err := toDecimal(r, args)
	if err != nil {
		return nil, err
	}
	d := new(apd.Decimal)
	_, err = towardsZero.RoundToIntegralValue(d, v.(*apd.Decimal))
	return orError(d, err)
}

func toString(r *run, args []value) (value, error) {
	s, ok := textOf(args[0])
	if !ok {
		return nil, noOverload("string", args...)
	}
	if _, same := args[0].(string); same {
		return s, nil
	}
	return s, r.making(len(s))
}

// textOf returns a value that is neither null, list nor map as text.
func textOf(v value) (text string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case *apd.Decimal:
		return v.Text('f'), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case bool:
		return strconv.FormatBool(v), true
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano), true
	case time.Duration:
		return strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + "s", true
	}
	return "", false
}

func toBool(_ *run, args []value) (value, error) {
	switch v := args[0].(type) {
	case bool:
		return v, nil
	case string:
		if isShort(v) {
			if b, err := strconv.ParseBool(v); err == nil {
				return b, nil
			}
		}
		return nil, fmt.Errorf("%.40q is neither true nor false", v)
	}
	return nil, noOverload("bool", args...)
}

func toTimestamp(_ *run, args []value) (value, error) {
	switch v := args[0].(type) {
	case time.Time:
		return v, nil
	case string:
		if isShort(v) {
			if t, err := time.Parse(time.RFC3339, v); err == nil {
				return timeIn(t)
			}
		}
		return nil, fmt.Errorf("%.40q is not a time of RFC 3339", v)
	}
	return nil, noOverload("timestamp", args...)
}

func toDuration(_ *run, args []value) (value, error) {
	switch v := args[0].(type) {
	case time.Duration:
		return v, nil
	case string:
		if isShort(v) {
			if d, err := time.ParseDuration(v); err == nil {
				return d, nil
			}
		}
		return nil, fmt.Errorf("%.40q is not a duration", v)
	}
	return nil, noOverload("duration", args...)
}

// parts are the parts of a timestamp. Months, days of the week and of the year count from 0, as in CEL.
var parts = map[string]func(time.Time) int{
	"getFullYear":     time.Time.Year,
	"getMonth":        func(t time.Time) int { return int(t.Month()) - 1 },
	"getDate":         time.Time.Day,
	"getDayOfMonth":   func(t time.Time) int { return t.Day() - 1 },
	"getDayOfWeek":    func(t time.Time) int { return int(t.Weekday()) },
	"getDayOfYear":    func(t time.Time) int { return t.YearDay() - 1 },
	"getHours":        time.Time.Hour,
	"getMinutes":      time.Time.Minute,
	"getSeconds":      time.Time.Second,
	"getMilliseconds": func(t time.Time) int { return t.Nanosecond() / 1e6 },
}

// units are those parts that a duration has too: all of it, in whole units.
var units = map[string]time.Duration{
	"getHours": time.Hour, "getMinutes": time.Minute, "getSeconds": time.Second, "getMilliseconds": time.Millisecond,
}

// zoneSteps is the cost of looking up a time zone.
const zoneSteps = 1000

func partOf(name string) func(*run, []value) (value, error) {
	return func(r *run, args []value) (value, error) {
		switch v := args[0].(type) {
		case time.Duration:
			if unit, ok := units[name]; ok && len(args) == 1 {
				return whole(int(v / unit)), nil
			}
		case time.Time:
			v = v.UTC()
			if len(args) == 2 {
				zone, err := zone(r, args[1])
				if err != nil {
					return nil, err
				}
				v = v.In(zone)
			}
			return whole(parts[name](v)), nil
		}
		return nil, noOverload(name, args...)
	}
}

// zone is a time zone by its name, or its difference from UTC such as +02:00.
func zone(r *run, name value) (*time.Location, error) {
	s, _ := name.(string)
	if err := r.spend(zoneSteps); err != nil {
		return nil, err
	}
	if !isShort(s) {
		return nil, errors.New("the name of the time zone is too long")
	}
	if t, err := time.Parse("-07:00", s); err == nil {
		return t.Location(), nil
	}
	return time.LoadLocation(s)
}
