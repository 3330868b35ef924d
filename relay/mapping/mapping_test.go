package mapping_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"spendhook/api/client"
	"spendhook/internal/invalid"
	"spendhook/relay"
	"spendhook/relay/mapping"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	company              = uuid.MustParse("6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11")
	other                = uuid.MustParse("7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01")
	_       relay.Mapper = (*mapping.Mapping)(nil)
)

const eventRecord = `{"id": "e1", "event": "PAYMENT_PAID", "timestamp": "2026-11-20T19:00:00.4129Z", "metadata": {"b": 1.10, "a": [ 1 ]}}`

// minimal are fields with which each record is an event, so that a test sets the one that it is about.
func minimal(change func(*mapping.Fields)) mapping.Fields {
	f := mapping.Fields{ID: `"e1"`, Event: `"E"`, Timestamp: `timestamp("2026-11-20T19:00:00Z")`, Metadata: `{}`}
	change(&f)
	return f
}

func newMapping(tb testing.TB, fields mapping.Fields, companies ...uuid.UUID) *mapping.Mapping {
	tb.Helper()
	if companies == nil {
		companies = []uuid.UUID{company}
	}
	m, err := mapping.New(mapping.Options{Fields: fields, Companies: companies})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// sent is the event as the daemon gets it, and the key; or the error.
func sent(m *mapping.Mapping, r *relay.Record) string {
	event, key, err := m.Event(context.Background(), r)
	if err != nil {
		return "dead: " + err.Error()
	}
	text, err := json.Marshal(event)
	if err != nil {
		return "cannot be sent: " + err.Error()
	}
	return string(text) + " key=" + key
}

func TestEventRecord(t *testing.T) {
	t.Parallel()
	m := newMapping(t, mapping.Fields{})
	got, key, err := m.Event(t.Context(), &relay.Record{Key: "k", Value: []byte(eventRecord)})
	if err != nil {
		t.Fatal(err)
	}
	want := client.EventInput{
		ID: "e1", Event: "PAYMENT_PAID", Timestamp: time.Date(2026, 11, 20, 19, 0, 0, 412e6, time.UTC),
		CompanyUUID: &company, Metadata: json.RawMessage(`{"b": 1.10, "a": [ 1 ]}`),
	}
	if diff := cmp.Diff(want, got); diff != "" || key != "k" {
		t.Errorf("key %q, event (-want +got):\n%s", key, diff)
	}
}

// Without expressions the record is what the API takes, so what the API refuses is refused.
func TestEventRecords(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ value, want string }{
		"epoch milliseconds": {`{"id":"a","event":"E","timestamp":1763665200000}`, `{"companyUuid":"6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11","event":"E","id":"a","timestamp":"2025-11-20T19:00:00Z"} key=`},
		"all members": {
			`{"id":"a","event":"E","timestamp":"2026-11-20T20:00:00+01:00","companyUuid":"7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01","errorCode":"C","errorMessage":"M","metadata":{}}`,
			`{"companyUuid":"7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01","errorCode":"C","errorMessage":"M","event":"E","id":"a","metadata":{},"timestamp":"2026-11-20T19:00:00Z"} key=`,
		},
		"null members":       {`{"id":"a","event":"E","timestamp":1763665200000,"metadata":null,"companyUuid":null,"errorCode":null}`, `{"companyUuid":"6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11","event":"E","id":"a","timestamp":"2025-11-20T19:00:00Z"} key=`},
		"another member":     {`{"id":"a","event":"E","timestamp":1763665200000,"errorcode":"C"}`, "dead: value: an event has no member errorcode"},
		"a strange member":   {`{"id":"a","event":"E","timestamp":1763665200000,"my secret":"C"}`, "dead: value: an event has no member"},
		"no id":              {`{"event":"E","timestamp":1763665200000}`, "dead: id: the record has no member id"},
		"an id of null":      {`{"id":null,"event":"E","timestamp":1763665200000}`, "dead: id: is required"},
		"an id that is odd":  {`{"id":"a b","event":"E","timestamp":1763665200000}`, "dead: id: must be 1 to 128 of A-Z, a-z, 0-9, _ and -"},
		"an own id":          {`{"id":"spendhook-1","event":"E","timestamp":1763665200000}`, "dead: id: must not begin with spendhook-"},
		"a long id":          {`{"id":"` + strings.Repeat("x", 129) + `","event":"E","timestamp":1763665200000}`, "dead: id: must be 1 to 128 of A-Z, a-z, 0-9, _ and -"},
		"a number as id":     {`{"id":1,"event":"E","timestamp":1763665200000}`, "dead: id: is not a text"},
		"an odd event":       {`{"id":"a","event":"E E","timestamp":1763665200000}`, "dead: event: must be a letter or digit and up to 127 of A-Z, a-z, 0-9, _, ., : and -"},
		"no timestamp":       {`{"id":"a","event":"E"}`, "dead: timestamp: the record has no member timestamp"},
		"seconds":            {`{"id":"a","event":"E","timestamp":1763665200}`, "dead: timestamp: want an RFC 3339 date-time such as 2026-11-20T19:00:00Z, or whole epoch milliseconds, of the year 2000 or later (seconds are not accepted)"},
		"a part of a second": {`{"id":"a","event":"E","timestamp":1763665200000.5}`, "dead: timestamp: want an RFC 3339 date-time such as 2026-11-20T19:00:00Z, or whole epoch milliseconds, of the year 2000 or later (seconds are not accepted)"},
		"another company":    {`{"id":"a","event":"E","timestamp":1763665200000,"companyUuid":"11111111-60e0-4a7f-8d0c-2c9b5f6f0a01"}`, "dead: companyUuid: company 11111111-60e0-4a7f-8d0c-2c9b5f6f0a01 is not one of the source's companies"},
		"no company":         {`{"id":"a","event":"E","timestamp":1763665200000,"companyUuid":"acme"}`, "dead: companyUuid: is not a UUID"},
		"a list as metadata": {`{"id":"a","event":"E","timestamp":1763665200000,"metadata":[]}`, "dead: metadata: is not an object"},
		"a long error code":  {`{"id":"a","event":"E","timestamp":1763665200000,"errorCode":"` + strings.Repeat("x", 129) + `"}`, "dead: errorCode: is longer than 128 bytes"},
		"no object":          {`[]`, "dead: value: the record is not an object"},
		"nothing":            {``, "dead: value: the record is empty"},
		"no JSON":            {`{"id": secret}`, "dead: value: the record is not JSON: invalid character 's' at start of value, at byte 7"},
		"half":               {`{"id":"a"`, "dead: value: the record is not JSON: unexpected EOF, at byte 9"},
		"more":               {eventRecord + ` {}`, "dead: value: the record is not JSON: there is more after its value, at byte 116"},
		"a member twice":     {`{"id":"secret","id":"b"}`, "dead: value: the record is not valid JSON: an object has a member twice, at byte 15"},
		"no UTF-8":           {"{\"id\":\"\xff\"}", "dead: value: the record is not JSON: invalid UTF-8, at byte 7"},
		"half a surrogate":   {`{"id":"\ud800"}`, `dead: value: the record is not JSON: invalid surrogate pair ` + "`\\ud800\"}`" + ` in string, at byte 7`},
		"too deep":           {strings.Repeat("[", 65) + strings.Repeat("]", 65), "dead: value: the record is nested more than 64 deep"},
		"deep metadata":      {`{"id":"a","event":"E","timestamp":1763665200000,"metadata":` + strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 65), "dead: value: the record is nested more than 64 deep"},
		"long metadata":      {`{"id":"a","event":"E","timestamp":1763665200000,"metadata":{"a":"` + strings.Repeat("x", 256<<10) + `"}}`, "dead: metadata: is longer than 262144 bytes"},
		"too long":           {`"` + strings.Repeat("x", 4<<20) + `"`, "dead: value: the record is longer than 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			companies := []uuid.UUID{company}
			if name == "all members" {
				companies = append(companies, other)
			}
			if got := sent(newMapping(t, mapping.Fields{}, companies...), &relay.Record{Value: []byte(tc.value)}); got != tc.want {
				t.Errorf("got  %.300s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	const value = `{"p": {"amount": 12.50, "big": 12345678901234567890.1, "n" : [1, 2 ]}, "a-b": {"c": {"d":1e2}}, "list": [{"x": 3}],
		"amount": 12.50, "exact": 0.1000000000000000055511151231257827, "huge": 1e999, "int": 9007199254740993, "long": 12345678901234567890,
		"name": "a\u00e9<\n", "no": null, "yes": true, "at": "2026-11-20T19:00:00Z", "deep": ` + "[[[1]]]" + `}`
	for expression, want := range map[string]string{
		// A path copies.
		`value.p`:                        `{"amount": 12.50, "big": 12345678901234567890.1, "n" : [1, 2 ]}`,
		`value["a-b"].c`:                 `{"d":1e2}`,
		`value.list[0]`:                  `{"x": 3}`,
		`has(value.p) ? value.p : value`: `{"amount": 12.50, "big": 12345678901234567890.1, "n" : [1, 2 ]}`,
		// So does what an object or a list has.
		`{"p": value.p.n, "list": value.list}`: `{"list":[{"x": 3}],"p":[1, 2 ]}`,
		// Numbers lose no digit.
		`{"n": [value.amount, value.exact, value.huge, value.int, value.long]}`:                                                   `{"n":[12.5,0.1000000000000000055511151231257827,1e999,9007199254740993,12345678901234567890]}`,
		`{"n": [value.exact == value.exact, value.exact == 0.1, value.exact in [value.huge, value.exact], 12.5 == value.amount]}`: `{"n":[true,false,true,true]}`,
		`{"n": value.amount * 2.0}`:          `{"n":25}`,
		`{"n": value.int + 1}`:               `{"n":9007199254740994}`,
		`{"n": [1e300, 1e-7, 123456.0, 0u]}`: `{"n":[1e+300,1e-07,123456,0]}`,
		// Other values.
		`{"s": value.name, "z": value.no, "b": value.yes}`:                                                                    `{"b":true,"s":"aé<\n","z":null}`,
		`{"t": timestamp(value.at), "d": duration("1.5s"), "raw": b"ab"}`:                                                     `{"d":"1.5s","raw":"YWI=","t":"2026-11-20T19:00:00Z"}`,
		`{"h": headers["h"], "k": key, "t": time, "p": from.partition, "q": from["topic"]}`:                                   `{"h":"v","k":"key","p":3,"q":"payments","t":"2026-11-20T19:00:00.123Z"}`,
		`{"size": text.size() > 100, "n": size(value.list), "m": size(value.p)}`:                                              `{"m":3,"n":1,"size":true}`,
		`{"l": value.p.map(k, k), "x": value.list.map(e, e.x + 1)}`:                                                           `{"l":["amount","big","n"],"x":[4]}`,
		`{"in": ["p" in value, "q" in value, {"x": 3} in value.list, value.p == value.p, value.list + [1] == [{"x": 3}, 1]]}`: `{"in":[true,false,true,true,true]}`,
		`{"h": hash("a", "bc") == hash("ab", "c"), "i": hash(key)}`:                                                           `{"h":false,"i":"c83c4b6063d89075f967de2f416b5b55"}`,
		// Errors.
		`value.payment`:                 `dead: metadata: no such key: payment`,
		`value.p.amount.x`:              `dead: metadata: no such key: x`,
		`value[value.name]`:             `dead: metadata: no such key`,
		`value.list[7]`:                 `dead: metadata: line 1, column 11: an index is out of range`,
		`value.amount`:                  `dead: metadata: is not an object`,
		`value.list`:                    `dead: metadata: is not an object`,
		`{"n": value.long + 1}`:         `dead: metadata: line 1, column 18: an operator or a function does not take a value of this type`,
		`{"n": 1 / (value.p.n[0] - 1)}`: `dead: metadata: line 1, column 9: division by zero`,
		`{"n": int(value.name)}`:        `dead: metadata: line 1, column 10: a value cannot be converted`,
		`{"n": timestamp(value.name)}`:  `dead: metadata: line 1, column 16: a value cannot be converted`,
		`{"n": 1.0 / 0.0}`:              `dead: metadata: has a number that is not finite`,
		`{"n": type(value)}`:            `dead: metadata: has a value that is no JSON, of the type type`,
		`{1: 2}`:                        `dead: metadata: has a name that is not a text`,
		`{"a": headers["none"]}`:        `dead: metadata: no such key: none`,
		`{"a": headers["bad"]}`:         `dead: metadata: has a text that is not valid UTF-8`,
		`{"a": text, "b": text}`:        `{"a":` + quoted(t, value) + `,"b":` + quoted(t, value) + `}`,
		`{"a": value.deep}`:             `{"a":[[[1]]]}`,
		`{"a": [1,2,3,4].map(i, [1,2,3,4,5,6,7,8,9,10].map(j, [1,2,3,4,5,6,7,8,9,10].map(k, [1,2,3,4,5,6,7,8,9,10].map(l, value))))}`: `dead: metadata: is longer than 262144 bytes`,
	} {
		t.Run(expression, func(t *testing.T) {
			t.Parallel()
			m := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = expression }))
			event, _, err := m.Event(t.Context(), &relay.Record{
				Key: "key", Value: []byte(value), Headers: map[string]string{"h": "v", "bad": "\xff"},
				Time: time.Date(2026, 11, 20, 19, 0, 0, 123e6, time.UTC), From: map[string]any{"topic": "payments", "partition": int32(3)},
			})
			got := string(event.Metadata)
			if err != nil {
				got = "dead: " + err.Error()
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func quoted(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func TestOtherFields(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 19, 0, 0, 123456789, time.UTC)
	record := func() *relay.Record {
		return &relay.Record{Key: "k", Value: []byte(`{"n": 7, "s": "x", "companyUuid": "7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01", "errorCode": "E1"}`), Headers: map[string]string{"bad": "\xff"}, Time: at}
	}
	const start, end = `{"companyUuid":"7b1de0d2-60e0-4a7f-8d0c-2c9b5f6f0a01","errorCode":"E1","event":"E","id":"e1","metadata":{},`, `"} key=`
	for name, tc := range map[string]struct {
		change func(*mapping.Fields)
		want   string
	}{
		"the time of the record": {func(f *mapping.Fields) { f.Timestamp = "time" }, start + `"timestamp":"2026-11-20T19:00:00.123` + `Z` + end + "k"},
		"a text as time":         {func(f *mapping.Fields) { f.Timestamp = `"2026-11-20T19:00:00Z"` }, start + `"timestamp":"2026-11-20T19:00:00Z` + end + "k"},
		"epoch milliseconds":     {func(f *mapping.Fields) { f.Timestamp = `1763665200000` }, start + `"timestamp":"2025-11-20T19:00:00Z` + end + "k"},
		"a time of no year":      {func(f *mapping.Fields) { f.Timestamp = `timestamp("0001-01-01T00:00:00Z")` }, "dead: timestamp: must be of the years 1 to 9999"},
		"a number as id":         {func(f *mapping.Fields) { f.ID = "value.n" }, "dead: id: is not a text"},
		"an id of a header":      {func(f *mapping.Fields) { f.ID = `headers["bad"]` }, "dead: id: is not valid UTF-8"},
		"no error":               {func(f *mapping.Fields) { f.ErrorCode = "null" }, strings.ReplaceAll(start, `"errorCode":"E1",`, "") + `"timestamp":"2026-11-20T19:00:00Z` + end + "k"},
		"a key":                  {func(f *mapping.Fields) { f.Key = "string(value.n) + value.s" }, start + `"timestamp":"2026-11-20T19:00:00Z` + end + "7x"},
		"no key":                 {func(f *mapping.Fields) { f.Key = `""` }, start + `"timestamp":"2026-11-20T19:00:00Z` + end},
		"a missing key":          {func(f *mapping.Fields) { f.Key = `value.none` }, "dead: key: no such key: none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := sent(newMapping(t, minimal(tc.change), company, other), record()); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// A record need not be JSON if no expression reads value.
func TestTextRecord(t *testing.T) {
	t.Parallel()
	m := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = `{"line": text}` }))
	const want = `{"companyUuid":"6f1c2a7e-3b0d-4a53-9c1c-0f5b8f0d2a11","event":"E","id":"e1","metadata":{"line":"a;b"},"timestamp":"2026-11-20T19:00:00Z"} key=`
	if got := sent(m, &relay.Record{Value: []byte("a;b")}); got != want {
		t.Errorf("got %s", got)
	}
	if got := sent(m, &relay.Record{Value: []byte("\xff")}); got != "dead: metadata: the text of the record is not valid UTF-8" {
		t.Errorf("not UTF-8: %s", got)
	}
	if got := sent(newMapping(t, minimal(func(f *mapping.Fields) { f.Timestamp = "time" })), &relay.Record{}); got != "dead: timestamp: the record has no time" {
		t.Errorf("without a time: %s", got)
	}
}

func TestSeveralCompaniesMustBeNamed(t *testing.T) {
	t.Parallel()
	m := newMapping(t, minimal(func(*mapping.Fields) {}), company, other)
	if got := sent(m, &relay.Record{Value: []byte(`{}`)}); got != "dead: companyUuid: is required, since the source has several companies" {
		t.Error(got)
	}
}

// Ids are made of hash: another result would make other events of the records that are sent again.
func TestHashNeverChanges(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		`hash("")`:                              "af5570f5a1810b7af78caf4bc70a660f",
		`hash("payments", "3", "4711")`:         "7f9a96c28ed3b75c90507b73e37862ca",
		`hash("1","2","3","4","5","6","7","8")`: "b4494f7658b3907c0b0d599257c5bf8e",
	} {
		m := newMapping(t, minimal(func(f *mapping.Fields) { f.ID = expression }))
		event, _, err := m.Event(t.Context(), &relay.Record{})
		if err != nil || event.ID != want {
			t.Errorf("%s is %s, %v, want %s", expression, event.ID, err, want)
		}
	}
}

func TestProblemsOfExpressions(t *testing.T) {
	t.Parallel()
	_, err := mapping.New(mapping.Options{Fields: mapping.Fields{
		ID: `headers["id"`, Event: `PAYMENT_PAID`, Timestamp: `true`, CompanyUUID: `1`, Metadata: `"x"`,
		ErrorCode: `now()`, ErrorMessage: "value.matches(\n value.pattern)", Key: `text.matches("(")`,
	}})
	var got *invalid.Error
	if !errors.As(err, &got) {
		t.Fatalf("error %v, want an *invalid.Error", err)
	}
	want := []string{
		"companies: want at least one company, and not the nil UUID",
		"mapping.id: line 1, column 13: Syntax error: missing ']' at '<EOF>'",
		"mapping.event: line 1, column 1: undeclared reference to 'PAYMENT_PAID'; a text needs quotation marks",
		"mapping.timestamp: must be of the type google.protobuf.Timestamp or string or int, and is of the type bool",
		"mapping.companyUuid: must be of the type string, and is of the type int",
		"mapping.metadata: must be of the type map, and is of the type string",
		"mapping.errorCode: line 1, column 4: undeclared reference to 'now'",
		"mapping.errorMessage: line 1, column 14: the pattern of matches must be a text in quotation marks",
		"mapping.key: must be of the type string, and is of the type bool",
	}
	var texts []string
	for _, f := range got.Fields {
		texts = append(texts, fmt.Sprintf("%s: %s", f.Field, f.Message))
	}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Error(diff)
	}
}
