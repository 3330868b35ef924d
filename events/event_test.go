package events_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/events"
)

const record = `{"id":"evt_1","companyUuid":"0190A3B4-0000-7000-8000-000000000001","event":"PAYMENT_PAID",
 "timestamp":"2026-03-01T12:00:00.1239+02:00","metadata":{"b":1.50,"a":[1,{"z":0,"y":"\u0041<"}]},
 "errorCode":"E1","errorMessage":"no"}`

const recordBody = `{"id":"evt_1","companyUuid":"0190a3b4-0000-7000-8000-000000000001","event":"PAYMENT_PAID",` +
	`"timestamp":"2026-03-01T10:00:00.123Z","metadata":{"a":[1,{"y":"A<","z":0}],"b":1.50},` +
	`"errorCode":"E1","errorMessage":"no"}`

func TestBodyIsCanonical(t *testing.T) {
	t.Parallel()
	if got := mustBody(t, mustDecode(t, record)); got != recordBody {
		t.Errorf("body\n got %s\nwant %s", got, recordBody)
	}
}

func TestBodyLeavesOutOnlyTheErrorFields(t *testing.T) {
	t.Parallel()
	const want = `{"id":"e","companyUuid":"00000000-0000-0000-0000-000000000000","event":"A",` +
		`"timestamp":"2023-11-14T22:13:20.001Z","metadata":{}}`
	for _, metadata := range []string{``, `,"metadata":null`, `,"metadata":{}`, `,"metadata": { }`} {
		e := mustDecode(t, `{"id":"e","event":"A","timestamp":1700000000001`+metadata+`}`)
		if got := mustBody(t, e); got != want {
			t.Errorf("body with %q\n got %s\nwant %s", metadata, got, want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown member":         `{"id":"e","amount":1}`,
		"wrong case":             `{"ID":"e"}`,
		"duplicate member":       `{"id":"e","id":"e"}`,
		"duplicate in metadata":  `{"metadata":{"a":{"b":1,"b":2}}}`,
		"trailing data":          `{"id":"e"} {}`,
		"not UTF-8":              "{\"id\":\"\xff\"}",
		"not UTF-8 in metadata":  "{\"metadata\":{\"a\":\"\xff\"}}",
		"lone surrogate":         `{"metadata":{"a":"\ud800"}}`,
		"id of another type":     `{"id":1}`,
		"company not a UUID":     `{"companyUuid":"acme"}`,
		"timestamp a date":       `{"timestamp":"2026-03-01"}`,
		"timestamp without zone": `{"timestamp":"2026-03-01T10:00:00"}`,
		"timestamp a fraction":   `{"timestamp":1700000000000.5}`,
		"timestamp an exponent":  `{"timestamp":1.7e12}`,
		"timestamp negative":     `{"timestamp":-1}`,
		"timestamp enormous":     `{"timestamp":253402300800000}`,
		"timestamp past int64":   `{"timestamp":99999999999999999999}`,
		"timestamp an object":    `{"timestamp":{}}`,
		"timestamp past 9999":    `{"timestamp":"9999-12-31T23:59:59-01:00"}`,
		"an array":               `[]`,
		"nested past the parser": `{"metadata":{"a":` + strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001) + `}}`,
	} {
		if e, err := decode(text); err == nil {
			t.Errorf("%s: decoded as %+v, want an error", name, e)
		}
	}
}

func TestDecodeErrorNamesTheField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"timestamp":"soon"}`:   "/timestamp",
		`{"timestamp":{}}`:       "/timestamp",
		`{"companyUuid":"acme"}`: "/companyUuid",
		`{"amount":1}`:           "/amount",
	} {
		_, err := decode(text)
		var semantic *json.SemanticError
		if !errors.As(err, &semantic) || string(semantic.JSONPointer) != want {
			t.Errorf("decode %s: error %v, want one at %s", text, err, want)
		}
	}
}

func TestUnknownMembersAreTheCallersChoice(t *testing.T) {
	t.Parallel()
	var e events.Event
	if err := json.Unmarshal([]byte(`{"id":"e","amount":1}`), &e); err != nil || e.ID != "e" {
		t.Errorf("without RejectUnknownMembers: %+v, %v", e, err)
	}
	var all []events.Event
	if err := json.Unmarshal([]byte(`[{"id":"e"},{"amount":1}]`), &all, json.RejectUnknownMembers(true)); err == nil {
		t.Error("with RejectUnknownMembers an array took an unknown member")
	}
}

func TestBodyRefusesWhatIsNotJSON(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]events.Event{
		"metadata":       {Metadata: jsontext.Value(`{"a":`)},
		"duplicate name": {Metadata: jsontext.Value(`{"a":1,"a":1}`)},
		"text":           {ErrorMessage: "\xff"},
	} {
		if body, err := e.Body(); err == nil {
			t.Errorf("%s: body %s, want an error", name, body)
		}
	}
}

// Equal content has the same body, however it is spelled. Different content has another.
func TestBodyIsTheFingerprint(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tree := drawObject(3).Draw(t, "metadata")
		base := drawRecord(t)
		one := mustDecode(t, base(tree.spell(t)))
		two := mustDecode(t, base(tree.spell(t)))
		if a, b := mustBody(t, one), mustBody(t, two); a != b {
			t.Fatalf("two spellings of one event:\n%s\n%s", a, b)
		}
		tree["~"] = "0"
		two = mustDecode(t, base(tree.spell(t)))
		if a, b := mustBody(t, one), mustBody(t, two); a == b {
			t.Fatalf("other content, same body %s", a)
		}
	})
}

func TestParseBodyReadsBackBody(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := mustDecode(t, drawRecord(t)(drawObject(3).Draw(t, "metadata").spell(t)))
		body := mustBody(t, e)
		back, err := events.ParseBody([]byte(body))
		if err != nil {
			t.Fatalf("parse %s: %v", body, err)
		}
		if again := mustBody(t, back); again != body {
			t.Fatalf("body of the parsed body:\n%s\n%s", body, again)
		}
		back.Metadata, e.Metadata = nil, nil // their canonical form is in the body
		if diff := cmp.Diff(e, back); diff != "" {
			t.Fatalf("event read back (-want +got):\n%s", diff)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(record))
	f.Add([]byte(recordBody))
	f.Add([]byte(`{"timestamp":1700000000000,"metadata":{"a":-0,"b":1E400,"":[]}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := events.ParseBody(data)
		if err != nil {
			return
		}
		_ = e.Validate(time.UnixMilli(1700000000000), retention, nil)
		body, err := e.Body()
		if err != nil {
			t.Fatalf("decoded %q but cannot encode it: %v", data, err)
		}
		back, err := events.ParseBody(body)
		if err != nil {
			t.Fatalf("cannot read back %q: %v", body, err)
		}
		if again := mustBody(t, back); again != string(body) {
			t.Fatalf("not canonical:\n%s\n%s", body, again)
		}
	})
}

func decode(text string) (events.Event, error) {
	var e events.Event
	err := json.Unmarshal([]byte(text), &e, json.RejectUnknownMembers(true))
	return e, err
}

// fataler is what *testing.T and *rapid.T share.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func mustDecode(t fataler, text string) events.Event {
	t.Helper()
	e, err := decode(text)
	if err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	return e
}

func mustBody(t fataler, e events.Event) string {
	t.Helper()
	body, err := e.Body()
	if err != nil {
		t.Fatalf("body of %+v: %v", e, err)
	}
	return string(body)
}

// drawRecord draws a record and returns its text as a function of its metadata.
func drawRecord(t *rapid.T) func(metadata string) string {
	company := uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "company"))
	ms := rapid.Int64Range(946684800000, 253402300799999).Draw(t, "ms")
	message, _ := json.Marshal(rapid.String().Draw(t, "errorMessage"))
	return func(metadata string) string {
		at := strconv.FormatInt(ms, 10)
		if rapid.Bool().Draw(t, "as text") {
			at = strconv.Quote(time.UnixMilli(ms).UTC().Format(time.RFC3339Nano))
		}
		return fmt.Sprintf(`{"id":"e","metadata":%s,"companyUuid":"%s","event":"A","timestamp":%s,"errorMessage":%s}`,
			metadata, company, at, message)
	}
}

// tree is a JSON object whose members may be spelled in any order.
type tree map[string]any // tree, or the literal text of another value

func drawObject(depth int) *rapid.Generator[tree] {
	return rapid.Custom(func(t *rapid.T) tree {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z0-9é"€😀/]{0,6}`), 0, 5, rapid.ID[string]).Draw(t, "names")
		o := tree{}
		for _, name := range names {
			if depth > 0 && rapid.Bool().Draw(t, "nest") {
				o[name] = drawObject(depth-1).Draw(t, "object")
			} else {
				o[name] = drawLiteral.Draw(t, "value")
			}
		}
		return o
	})
}

var drawLiteral = rapid.SampledFrom([]string{
	`null`, `true`, `0`, `-0`, `1.0`, `1.00`, `1e3`, `12345678901234567890`, `[]`, `[1,{"x":2}]`, `"text"`, `"<&>"`,
})

// spell writes o with a random order of members and random white space.
func (o tree) spell(t *rapid.T) string {
	space := rapid.SampledFrom([]string{"", " ", "\n\t", "\r\n"})
	names := make([]string, 0, len(o))
	for name := range o {
		names = append(names, name)
	}
	var b strings.Builder
	b.WriteString("{")
	for i, name := range rapid.Permutation(sorted(names)).Draw(t, "order") {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(space.Draw(t, "space") + spellName(t, name) + space.Draw(t, "space") + ":")
		if nested, ok := o[name].(tree); ok {
			b.WriteString(nested.spell(t))
		} else {
			b.WriteString(space.Draw(t, "space") + o[name].(string))
		}
	}
	return b.String() + space.Draw(t, "space") + "}"
}

// spellName quotes name, with some characters escaped that need not be.
func spellName(t *rapid.T, name string) string {
	var b strings.Builder
	for _, r := range name {
		if r < 0x10000 && (r == '"' || rapid.Bool().Draw(t, "escape")) {
			fmt.Fprintf(&b, `\u%04X`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}
