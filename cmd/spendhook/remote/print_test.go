package remote

import (
	"strings"
	"testing"
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
