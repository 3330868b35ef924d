package mapping_test

import (
	"strings"
	"testing"

	"spendhook/relay"
	"spendhook/relay/mapping"
)

// Each expression is one that an operator may write, and each record one that makes it as slow as can be. The record is
// dead after a bounded number of steps, and not by the clock.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	const steps = "dead: metadata: the expression takes more than 2000000 steps"
	ones := "[" + strings.Repeat("1,", 100_000) + "1]"
	long := `"` + strings.Repeat("x", 1<<20) + `"`
	for name, tc := range map[string]struct{ expression, value, want string }{
		"a loop in a loop":              {`{"n": value.map(x, value.filter(y, y == x).size())}`, ones, steps},
		"many reads of a text":          {`{"n": value.l.exists(x, size(value.t) == x)}`, `{"l": ` + ones + `, "t": ` + long + `}`, steps},
		"a hidden error":                {`{"n": value.l.exists(x, size(value.t) == x) || true}`, `{"l": ` + ones + `, "t": ` + long + `}`, steps},
		"many hashes":                   {`{"n": value.l.exists(x, hash(value.t) == "")}`, `{"l": ` + ones + `, "t": ` + long + `}`, steps},
		"many comparisons":              {`{"n": value.l.exists(x, value.a != value.b)}`, `{"l": ` + ones + `, "a": ` + ones + `, "b": ` + ones + `}`, steps},
		"many searches in a list":       {`{"n": value.l.exists(x, 2 in value.a)}`, `{"l": ` + ones + `, "a": ` + ones + `}`, steps},
		"many copies":                   {`{"n": value.l.map(x, value.t)}`, `{"l": [1,1,1,1,1,1,1,1], "t": ` + long + `}`, "dead: metadata: is longer than 262144 bytes"},
		"very many copies":              {`{"n": value.l.map(x, value.t)}`, `{"l": ` + ones + `, "t": ` + long + `}`, steps},
		"a pattern in a long text":      {`{"n": value.matches("(x+x+)+y")}`, long, ""},
		"a number of many digits":       {`{"n": value == value}`, strings.Repeat("9", 1<<20), ""},
		"a number with a huge exponent": {`{"n": [value, value == value]}`, "1e" + strings.Repeat("9", 1000), ""},
		"a small exponent":              {`{"n": [value, value == value]}`, "1e-999999999", ""},
		"objects in each other":         {`{"n": value.a.a.a.a}`, strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64), ""},
		"brackets only":                 {`{"n": value}`, strings.Repeat("[", 1<<20), "dead: metadata: the record is nested more than 64 deep"},
		"one long name":                 {`value.none`, `{` + long + `: 1}`, "dead: metadata: no such key: none"},
		"many names":                    {`{"n": size(value)}`, `{"a0":1` + names(20_000) + `}`, ""},
		"a name as key":                 {`value[value.k]`, `{"k": ` + long + `}`, "dead: metadata: no such key"},
		"a text as number":              {`{"n": int(value)}`, long, "dead: metadata: line 1, column 10: a value cannot be converted"},
		"a text as time":                {`{"n": timestamp(value)}`, long, "dead: metadata: line 1, column 16: a value cannot be converted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMapping(t, minimal(func(f *mapping.Fields) { f.Metadata = tc.expression }))
			got := sent(m, &relay.Record{Value: []byte(tc.value)})
			if tc.want != "" && got != tc.want || tc.want == "" && strings.HasPrefix(got, "dead") {
				t.Errorf("got %.300s", got)
			}
		})
	}
}

func names(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"m`)
		for ; i > 0; i /= 26 {
			b.WriteByte(byte('a' + i%26))
		}
		b.WriteString(`":1`)
	}
	return b.String()
}

func BenchmarkEvent(b *testing.B) {
	for name, fields := range map[string]mapping.Fields{
		"record": {},
		"mapped": {ID: "value.id", Event: "value.event", Timestamp: "value.timestamp", Metadata: "value.metadata"},
	} {
		b.Run(name, func(b *testing.B) {
			m := newMapping(b, fields)
			r := &relay.Record{Value: []byte(eventRecord)}
			for b.Loop() {
				if _, _, err := m.Event(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
