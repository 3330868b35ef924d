package remote

import (
	"strings"
	"testing"
	"time"
	"unicode"
)

// Readers of YAML 1.1, such as PyYAML, must read the values that the JSON has.
func TestYAMLIsReadAlikeByAllVersions(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`"no"`: `"no"`, `"Yes"`: `"Yes"`, `"on"`: `"on"`, `"y"`: `"y"`, `"NULL"`: `"NULL"`, `"~"`: `"~"`, `""`: `""`,
		`"12:30:45"`: `"12:30:45"`, `"1_000"`: `"1_000"`, `"010"`: `"010"`, `"0o7"`: `"0o7"`, `"1e3"`: `"1e3"`, `"12.50"`: `"12.50"`,
		`"2026-11-20"`: `"2026-11-20"`, `"="`: `"="`, `"<<"`: `"<<"`, `"a: b"`: `"a: b"`, `"a #b"`: `"a #b"`, `" a"`: `" a"`, `".inf"`: `".inf"`,
		`"PAYMENT_PAID"`: `PAYMENT_PAID`, `"Taxi to the airport"`: `Taxi to the airport`, `"a\nb"`: `"a\nb"`,
		`true`: `true`, `null`: `null`, `12.50`: `12.50`, `-7`: `-7`, `1e3`: `1.0e+3`, `-1.5E-7`: `-1.5e-7`, `100000000000000000000`: `100000000000000000000`,
	} {
		var b strings.Builder
		if err := printYAML(&b, []byte(`{"a":`+value+`}`)); err != nil || b.String() != "a: "+want+"\n" {
			t.Errorf("%s: %q, %v", value, b.String(), err)
		}
	}
	var b strings.Builder
	if err := printYAML(&b, []byte(`{"no":{"y":[1,"off"]},"12:30":{}}`)); err != nil || b.String() != "\"no\":\n  \"y\":\n    - 1\n    - \"off\"\n\"12:30\": {}\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// What emitters and receivers wrote must not change the terminal: colors, the cursor, the direction of text.
func TestOutputHasNoControlCharacters(t *testing.T) {
	t.Parallel()
	const text = `{"a\u001b[31m":"b\u001b]0;title\u0007","c":"\u202eevil\u0085","d":[{"e\u009b":"\u2066"}]}`
	raw := strings.NewReplacer(`\u202e`, "\u202e", `\u0085`, "\u0085", `\u009b`, "\u009b", `\u2066`, "\u2066").Replace(text)
	for _, format := range []string{"table", "json", "yaml"} {
		for _, in := range []string{text, raw} {
			var b strings.Builder
			if err := (output{Format: format}).print(&b, []byte(in)); err != nil {
				t.Fatal(err)
			}
			for _, r := range b.String() {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Errorf("%s has %U: %q", format, r, b.String())
				}
			}
			if !strings.Contains(b.String(), "evil") {
				t.Errorf("%s: %q", format, b.String())
			}
		}
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	item, err := parse([]byte(`{"code":503,"error":"http_5xx","at":"2026-11-20T11:57:30Z","next":"2026-11-22T13:00:00Z","health":{"at":"2026-11-20T11:59:59.5Z"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"code or error": "503", "status or error": "http_5xx", "status or none": "", "since at": "2m", "until next": "in 2d", "until at": "due", "since next": "0s", "until none": "",
		"since health.at": "0s", "since none": "", "error": "http_5xx",
	} {
		if got := (column{"", path}).of(item, now); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for d, want := range map[time.Duration]string{119 * time.Second: "119s", 119 * time.Minute: "119m", 47 * time.Hour: "47h", 80 * time.Hour: "3d"} {
		if got := roughly(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestAnObjectWithATable(t *testing.T) {
	t.Parallel()
	const text = `{"id":"a","attempts":[{"number":1,"statusCode":500,"timing":{"waitedMs":1}},{"number":2}],"attemptsLeft":3}`
	for format, want := range map[string]string{
		"table": "id            a\nattemptsLeft  3\n\nATTEMPT  STATUS\n1        500\n2        \n",
		"name":  "a\n",
	} {
		var b strings.Builder
		err := output{Format: format}.printWith(&b, []byte(text), "attempts", table{{"ATTEMPT", "number"}, {"STATUS", "statusCode"}})
		if err != nil || b.String() != want {
			t.Errorf("%s: %q, %v", format, b.String(), err)
		}
	}
}

func TestMoments(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 3600)
	now := time.Date(2026, 3, 1, 0, 30, 0, 0, zone)
	for text, want := range map[string]string{
		"today": "2026-03-01T00:00:00+01:00", "yesterday": "2026-02-28T00:00:00+01:00", "2h": "2026-02-28T22:30:00+01:00", "3d": "2026-02-26T00:30:00+01:00",
		"2026-02-20": "2026-02-20T00:00:00+01:00", "2026-02-20 19:00": "2026-02-20T19:00:00+01:00", "2026-02-20 19:00:05": "2026-02-20T19:00:05+01:00",
		"2026-02-20T19:00:00Z": "2026-02-20T19:00:00Z",
	} {
		if got, err := momentOf(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "tomorrow", "2026-02-30", "19:00", "-3d"} {
		if got, err := momentOf(text, now); err == nil {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// Columns of colored statuses are aligned, and without colors there is no control character.
func TestStatusesAreColored(t *testing.T) {
	t.Parallel()
	list, err := parse([]byte(`[{"id":"a","status":"DEAD","n":1},{"id":"bb","status":"DELIVERED","n":2},{"id":"c","n":3}]`))
	if err != nil {
		t.Fatal(err)
	}
	for colors, want := range map[bool]string{
		false: "ID  STATUS     N\na   DEAD       1\nbb  DELIVERED  2\nc              3\n",
		true: "ID  \x1b[39mSTATUS\x1b[0m     N\na   \x1b[31mDEAD\x1b[0m       1\n" +
			"bb  \x1b[32mDELIVERED\x1b[0m  2\nc   \x1b[39m\x1b[0m           3\n",
	} {
		var b strings.Builder
		if err := (table{{"ID", "id"}, {"STATUS", "status"}, {"N", "n"}}).write(&b, list.array(), time.Now(), colors); err != nil || b.String() != want {
			t.Errorf("%q, %v", b.String(), err)
		}
	}
}

// The error of an expression is shown where its subscriber or attempt is.
func TestTablesShowErrorsOfExpressions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		shown table
		field string
	}{{attemptTable, "transformError"}, {explainTable, "transformError"}, {explainTable, "filterError"}, {explainTable, "orderedByError"}} {
		item, err := parse([]byte(`{"` + tt.field + `":"no such key: amount"}`))
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := tt.shown.write(&b, []node{item}, time.Time{}, false); err != nil || !strings.Contains(b.String(), "no such key: amount") {
			t.Errorf("%s: %s, %v", tt.field, b.String(), err)
		}
	}
}
