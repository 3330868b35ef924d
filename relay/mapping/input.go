package mapping

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/internal/syntax"
	"spendhook/relay"
)

// Limits of the JSON of a record. They bound the memory of its evaluation: the JSON of an event is far smaller.
const (
	maxValue     = 4 << 20 // bytes
	maxValueDeep = 64      // objects and lists in each other
)

// input has the variables of the expressions for one record, each made when it is first read. It is a cel.Activation.
type input struct {
	record *relay.Record
	value  ref.Val // nil: value was not read; a *types.Err: it is no JSON
	text   ref.Val // nil: text was not read
	steps  int     // of the expression
}

// problem is an error whose text may be shown to the operator as it is.
type problem string

func (p problem) Error() string { return string(p) }

func problemf(format string, args ...any) ref.Val {
	return types.WrapErr(problem(fmt.Sprintf(format, args...)))
}

// Parent returns nil: there are no other variables.
func (in *input) Parent() cel.Activation { return nil }

// ResolveName returns a variable.
func (in *input) ResolveName(name string) (any, bool) {
	r := in.record
	switch name {
	case inputName:
		return in, true
	case "value":
		return in.json(), true
	case "text":
		return in.raw(), true
	case "key":
		return types.String(r.Key), true
	case "headers":
		return ordered{types.NewStringStringMap(types.DefaultTypeAdapter, r.Headers)}, true
	case "from":
		return ordered{types.NewStringInterfaceMap(types.DefaultTypeAdapter, r.From)}, true
	case "time":
		if r.Time.IsZero() {
			return problemf("the record has no time"), true
		}
		return types.Timestamp{Time: r.Time.UTC()}, true
	}
	return nil, false
}

func (in *input) raw() ref.Val {
	switch {
	case in.text != nil:
	case !utf8.Valid(in.record.Value):
		in.text = problemf("the text of the record is not valid UTF-8")
	default:
		in.text = types.String(in.record.Value)
	}
	return in.text
}

func (in *input) json() ref.Val {
	if in.value == nil {
		in.value = parse(in.record.Value)
	}
	return in.value
}

// parse returns the value of JSON text, or why it is none. Objects and lists are read when they are first used.
func parse(text []byte) ref.Val {
	switch {
	case len(text) == 0:
		return problemf("the record is empty")
	case len(text) > maxValue:
		return problemf("the record is longer than %d bytes", maxValue)
	case syntax.NestsDeeper(text, maxValueDeep):
		return problemf("the record is nested more than %d deep", maxValueDeep)
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(text))
	value, err := d.ReadValue()
	if err != nil {
		return notJSON(err)
	}
	end := int(d.InputOffset())
	raw := text[end-len(value) : end]
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return problemf("the record is not JSON: there is more after its value, at byte %d", end)
	}
	return newValue(raw)
}

// notJSON says why a text is not JSON, without its content.
func notJSON(err error) ref.Val {
	syntactic, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok:
		return problemf("the record is not JSON: it ends too early")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return problemf("the record is not valid JSON: an object has a member twice, at byte %d", syntactic.ByteOffset)
	}
	return problemf("the record is not JSON: %.100v, at byte %d", syntactic.Err, syntactic.ByteOffset)
}

// required are the members that an event record must have.
var required = map[string]bool{"id": true, "event": true, "timestamp": true}

// member is a member of value, which has the default of a field; types.NullValue: there is none. Only for a
// required one it matters that value is an object.
func (in *input) member(name string) (ref.Val, error) {
	switch v := in.json().(type) {
	case *object:
		if found, ok := v.Find(types.String(name)); ok {
			return found, nil
		}
	case *types.Err:
		if required[name] || name == "metadata" {
			return nil, v.Unwrap()
		}
	}
	if required[name] {
		return nil, fmt.Errorf("the record has no member %s", name)
	}
	return types.NullValue, nil
}

var eventMembers = map[string]bool{
	"id": true, "event": true, "timestamp": true, "companyUuid": true, "metadata": true, "errorCode": true, "errorMessage": true,
}

// isEventRecord refuses what the API would refuse too, rather than lose a member without notice.
func (in *input) isEventRecord() error {
	switch v := in.json().(type) {
	case *types.Err:
		return v.Unwrap()
	case *object:
		for _, name := range v.load().names {
			if !eventMembers[string(name)] {
				return fmt.Errorf("an event has no member%s", shown(string(name)))
			}
		}
		return nil
	}
	return errors.New("the record is not an object")
}

// shown is a name of a record as an error may show it: " name", or "" if it is no plain and short name.
func shown(name string) string {
	if !plainName.MatchString(name) {
		return ""
	}
	return " " + name
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)
