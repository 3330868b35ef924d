package mapping_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spendhook/relay"
	"spendhook/relay/mapping"
)

// jsonText makes JSON with all the freedom that JSON has, nested at most depth deep.
func jsonText(depth int) *rapid.Generator[string] {
	space := rapid.SampledFrom([]string{"", "", " ", "\n", "\t \r"})
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,20})?`)
	text := rapid.SampledFrom([]string{`""`, `"a"`, `"\u0061\ud83d\ude00"`, `"é<&>\/"`, `"\\\""`, `"]}"`})
	scalar := rapid.OneOf(number, text, rapid.SampledFrom([]string{"true", "false", "null"}))
	return rapid.Custom(func(t *rapid.T) string {
		kind := rapid.IntRange(0, 2).Draw(t, "kind")
		if depth == 0 || kind == 0 {
			return scalar.Draw(t, "scalar")
		}
		parts := make([]string, rapid.IntRange(0, 4).Draw(t, "size"))
		for i := range parts {
			parts[i] = space.Draw(t, "space") + jsonText(depth-1).Draw(t, "item") + space.Draw(t, "space")
			if kind == 1 {
				parts[i] = fmt.Sprintf(`%s"m%d"%s:%s`, space.Draw(t, "space"), i, space.Draw(t, "space"), parts[i])
			}
		}
		if kind == 1 {
			return "{" + strings.Join(parts, ",") + "}"
		}
		return "[" + strings.Join(parts, ",") + "]"
	})
}

func TestPathCopiesVerbatim(t *testing.T) {
	t.Parallel()
	whole := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = "value" }))
	part := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = `value["a-b"].list[1]` }))
	wrapped := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = `{"x": value}` }))
	rapid.Check(t, func(t *rapid.T) {
		inner := `{"m": ` + jsonText(4).Draw(t, "json") + ` }`
		for _, tc := range []struct {
			m           *mapping.Mapping
			value, want string
		}{
			{whole, " " + inner + "\n", inner},
			{part, `{"a-b": {"list": [0,` + inner + `] } }`, inner},
			{wrapped, inner, `{"x":` + inner + `}`},
		} {
			event, _, err := tc.m.Event(context.Background(), &relay.Record{Value: []byte(tc.value)})
			if err != nil || string(event.Metadata) != tc.want {
				t.Fatalf("got %s, %v, want %s", event.Metadata, err, tc.want)
			}
		}
	})
}

// computing reads all that an expression can, in ways that depend on the order of maps.
var computing = mapping.Fields{
	ID: `hash(text, key)`, Event: `"E"`, Timestamp: `time`, ErrorMessage: `headers.map(h, h)[0]`,
	Metadata: `{"b": dyn(value), "a": {"z": 1, "y": value, "x": [1.5]}.map(k, k), "h": headers.map(h, h), "f": from.map(k, from[k]),
		"l": {3: 1, 1: 1, 2: 1, true: 1, "s": 1, 4u: 1}.map(k, string(k)), "e": value == value}`,
}

func TestSameRecordMakesSameEvent(t *testing.T) {
	t.Parallel()
	one, two := newMapping(t, computing), newMapping(t, computing)
	rapid.Check(t, func(t *rapid.T) {
		value := jsonText(4).Draw(t, "json")
		record := func() *relay.Record {
			r := &relay.Record{
				Value: []byte(value), Key: "k", Time: time.UnixMilli(1763665200000),
				Headers: map[string]string{}, From: map[string]any{"topic": "t", "partition": int32(1), "offset": int64(7)},
			}
			for _, name := range "abcdefgh" {
				r.Headers[string(name)] = "v"
			}
			return r
		}
		first := sent(one, record())
		if strings.HasPrefix(first, "dead") {
			t.Fatal(first)
		}
		for range 3 {
			if again := sent(two, record()); again != first {
				t.Fatalf("first %s\nthen  %s", first, again)
			}
		}
	})
}

func TestNumberKeepsItsValue(t *testing.T) {
	t.Parallel()
	m := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = `{"n": value}` }))
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?`)
	rapid.Check(t, func(t *rapid.T) {
		text := number.Draw(t, "number")
		event, _, err := m.Event(context.Background(), &relay.Record{Value: []byte(text)})
		if err != nil {
			t.Fatal(err)
		}
		var got struct{ N json.Number }
		if err := json.Unmarshal(event.Metadata, &got); err != nil {
			t.Fatalf("%s: %v", event.Metadata, err)
		}
		was, _ := new(big.Rat).SetString(text)
		is, ok := new(big.Rat).SetString(got.N.String())
		if !ok || was.Cmp(is) != 0 {
			t.Fatalf("%s became %s", text, got.N)
		}
	})
}

// FuzzEvent has records of others: none may stop the relay, make two events, or an event that cannot be sent.
func FuzzEvent(f *testing.F) {
	f.Add([]byte(eventRecord), "h", int64(1763665200000))
	f.Add([]byte(`{"a":{"b":[1,2.50,1e999]},"a":1}`), "\xff", int64(-1<<62))
	plain := newMapping(f, mapping.Fields{Key: `string(value.id)`})
	mapped := newMapping(f, mapping.Fields{
		ID: `hash(text, headers["h"])`, Event: `has(value.type) ? value.type : "E"`, Timestamp: `has(value.at) ? value.at : time`,
		Metadata: `{"v": value, "n": [value.n, value.a + value.b], "l": value.l.map(x, x.y).filter(x, x > 1), "h": headers}`,
	})
	f.Fuzz(func(t *testing.T, value []byte, header string, ms int64) {
		record := &relay.Record{Value: value, Key: header, Headers: map[string]string{"h": header}, Time: time.UnixMilli(ms)}
		for _, m := range []*mapping.Mapping{plain, mapped} {
			first := sent(m, record)
			if again := sent(m, record); again != first {
				t.Errorf("first %q\nthen  %q", first, again)
			}
			if strings.HasPrefix(first, "cannot be sent") {
				t.Errorf("made of %q: %.200q", value, first)
			}
		}
	})
}
