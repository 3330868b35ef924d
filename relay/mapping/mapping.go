// Package mapping makes events of records by expressions of the Common Expression Language (CEL, https://cel.dev).
//
// An expression reads the record by these variables: value (the JSON of the record), text (the same, not parsed),
// headers, key, time and from. Beside the standard functions there is hash, which makes an id of 1 to 8 texts. There is
// neither a clock nor chance, and maps are read in a fixed order, so the same record always makes the same event.
//
// An object or a list of value that is copied is copied byte for byte. A number that is used alone is an int if it is a
// whole number of 64 bits, and a double if the double has the same digits. Any other number can only be copied and
// compared for equality.
package mapping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/google/uuid"

	"spendhook/api/client"
	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
	"spendhook/internal/timestamp"
	"spendhook/relay"
)

// Limits of an event, as the daemon has them.
const (
	maxID           = 128       // bytes
	maxErrorCode    = 128       // bytes
	maxErrorMessage = 4096      // bytes
	maxMetadata     = 256 << 10 // bytes
	maxMetadataDeep = 63        // objects and lists in each other
	ownPrefix       = "spendhook-"
)

// Fields are the expressions, by the field of the event that each makes. An empty one stands for the field's default:
// the member of value with the name of the field, where CompanyUUID, ErrorCode and ErrorMessage may be absent; and for
// Key the key of the record.
type Fields struct {
	ID           string
	Event        string
	Timestamp    string
	CompanyUUID  string
	Metadata     string
	ErrorCode    string
	ErrorMessage string
	Key          string
}

// Options are what New needs.
type Options struct {
	Fields Fields
	// Companies are those that records may name, at least one. If there is one only, a record need not name it.
	Companies []uuid.UUID
}

// Mapping is a relay.Mapper. It is safe for concurrent use.
type Mapping struct {
	expressions map[string]*expression // by the name of the field; those that are not empty
	companies   []uuid.UUID
	plain       bool // no field of the event has an expression: the record is an event record
}

// New compiles the expressions. The error is an *invalid.Error with the problems of all of them; its fields are those of
// the configuration, such as mapping.id. New takes milliseconds.
func New(o Options) (*Mapping, error) {
	m := &Mapping{expressions: make(map[string]*expression), companies: o.Companies, plain: true}
	problems := &invalid.Error{}
	if len(o.Companies) == 0 || slices.Contains(o.Companies, uuid.Nil) {
		problems.Add("companies", "REQUIRED", "want at least one company, and not the nil UUID")
	}
	for _, f := range []struct {
		name, text string
		result     []*cel.Type
	}{
		{"id", o.Fields.ID, textTypes},
		{"event", o.Fields.Event, textTypes},
		{"timestamp", o.Fields.Timestamp, []*cel.Type{cel.TimestampType, cel.StringType, cel.IntType}},
		{"companyUuid", o.Fields.CompanyUUID, textTypes},
		{"metadata", o.Fields.Metadata, []*cel.Type{types.MapType}},
		{"errorCode", o.Fields.ErrorCode, textTypes},
		{"errorMessage", o.Fields.ErrorMessage, textTypes},
		{"key", o.Fields.Key, textTypes},
	} {
		if f.text == "" {
			continue
		}
		compiled, err := compile(f.text, f.result)
		if err != nil {
			problems.Add("mapping."+f.name, "INVALID", "%v", err)
		}
		m.expressions[f.name] = compiled
		m.plain = m.plain && f.name == "key"
	}
	if err := problems.OrNil(); err != nil {
		return nil, err
	}
	return m, nil
}

var textTypes = []*cel.Type{cel.StringType}

// Event makes the event of a record and its key. The error says why the record can never be an event, as "field: reason",
// without content of the record other than names of members. The same record always has the same result, so the end of
// the context does not stop it: an evaluation is bounded by its steps. The metadata may share memory with the value of the
// record.
func (m *Mapping) Event(_ context.Context, r *relay.Record) (client.EventInput, string, error) {
	in := &input{record: r}
	if m.plain {
		if err := in.isEventRecord(); err != nil {
			return client.EventInput{}, "", fmt.Errorf("value: %w", err)
		}
	}
	f := &fields{mapping: m, in: in}
	event := client.EventInput{
		ID: f.id(), Event: f.event(), Timestamp: f.timestamp(), CompanyUUID: f.company(), Metadata: f.metadata(),
		ErrorCode: f.optional("errorCode", maxErrorCode), ErrorMessage: f.optional("errorMessage", maxErrorMessage),
	}
	key := r.Key
	if m.expressions["key"] != nil {
		key = f.text("key")
	}
	if f.err != nil {
		return client.EventInput{}, "", f.err
	}
	return event, key, nil
}

// fields makes the fields of one event, until the first that cannot be made.
type fields struct {
	mapping *Mapping
	in      *input
	err     error
}

func (f *fields) fail(name, format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(name+": "+format, args...)
	}
}

// value is the result of an expression, or the default; types.NullValue: there is none.
func (f *fields) value(name string) ref.Val {
	if f.err != nil {
		return types.NullValue
	}
	read := func() (ref.Val, error) { return f.in.member(name) }
	if e := f.mapping.expressions[name]; e != nil {
		read = func() (ref.Val, error) { return e.eval(f.in) }
	}
	v, err := read()
	if err != nil {
		f.fail(name, "%w", err)
		return types.NullValue
	}
	return v
}

// text is the value of a text; "": there is none.
func (f *fields) text(name string) string {
	switch v := f.value(name).(type) {
	case types.Null:
	case types.String:
		if !utf8.ValidString(string(v)) {
			f.fail(name, "is not valid UTF-8")
		}
		return string(v)
	default:
		f.fail(name, "is not a text")
	}
	return ""
}

func (f *fields) id() string {
	id := f.text("id")
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}
	switch {
	case id == "":
		f.fail("id", "is required")
	case len(id) > maxID || strings.ContainsFunc(id, odd):
		f.fail("id", "must be 1 to %d of A-Z, a-z, 0-9, _ and -", maxID)
	case strings.HasPrefix(id, ownPrefix):
		f.fail("id", "must not begin with %s", ownPrefix)
	}
	return id
}

func (f *fields) event() string {
	event := f.text("event")
	if !syntax.EventType(event) {
		f.fail("event", "must be a letter or digit and up to 127 of A-Z, a-z, 0-9, _, ., : and -")
	}
	return event
}

// timestamp is of the years 1 to 9999, and not the zero time: no other can be sent.
func (f *fields) timestamp() time.Time {
	var t time.Time
	var err error
	switch v := f.value("timestamp").(type) {
	case types.Null:
		err = errors.New("is required")
	case types.Timestamp:
		t = v.Time
	case types.String:
		t, err = timestamp.Parse(string(v))
	case types.Int:
		t, err = timestamp.ParseMillis(strconv.FormatInt(int64(v), 10))
	default:
		err = timestamp.Err
	}
	t = t.UTC().Truncate(time.Millisecond)
	switch {
	case errors.Is(err, timestamp.Err):
		f.fail("timestamp", "want %w", err)
	case err != nil:
		f.fail("timestamp", "%w", err)
	case t.IsZero() || t.Year() < 1 || t.Year() > 9999:
		f.fail("timestamp", "must be of the years 1 to 9999")
	}
	return t
}

func (f *fields) company() *uuid.UUID {
	text := f.text("companyUuid")
	if text == "" && len(f.mapping.companies) == 1 {
		return &f.mapping.companies[0]
	}
	id, err := uuid.Parse(text)
	switch {
	case text == "":
		f.fail("companyUuid", "is required, since the source has several companies")
	case err != nil || len(text) != len(uuid.Nil.String()):
		f.fail("companyUuid", "is not a UUID")
	case !slices.Contains(f.mapping.companies, id):
		f.fail("companyUuid", "company %s is not one of the source's companies", id)
	}
	return &id
}

func (f *fields) metadata() []byte {
	var text []byte
	switch v := f.value("metadata").(type) {
	case types.Null:
		return nil
	case *object:
		text = v.raw
	default:
		var err error
		if text, err = encode(v); err != nil {
			f.fail("metadata", "%w", err)
			return nil
		}
	}
	switch {
	case len(text) > maxMetadata:
		f.fail("metadata", "%w", errTooLong)
	case !bytes.HasPrefix(text, []byte("{")):
		f.fail("metadata", "is not an object")
	case syntax.NestsDeeper(text, maxMetadataDeep):
		f.fail("metadata", "%w", errTooDeep)
	}
	return text
}

// optional is a text of at most limit bytes; nil: there is none, or it is empty.
func (f *fields) optional(name string, limit int) *string {
	text := f.text(name)
	if text == "" {
		return nil
	}
	if len(text) > limit {
		f.fail(name, "is longer than %d bytes", limit)
	}
	return &text
}
