package remote

import (
	"strings"
	"testing"
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
			if err := (output{format}).print(&b, []byte(in)); err != nil {
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
