package layout

import (
	"fmt"
	"strings"
	"testing"
)

// Only a settled event has records, and only when their length is right.
func TestWithoutRecords(t *testing.T) {
	t.Parallel()
	head := strings.Repeat("0", headerLen-1)
	body := `"event":"A","timestamp":"t"}`
	with := func(n int, records string) string { return body + records + fmt.Sprintf("%08xP", n) }
	for _, c := range []struct{ value, event string }{
		{"S" + head + body, "S" + head + body},
		{"S" + head + with(3, "abc"), "S" + head + body},
		{"S" + head + with(0, ""), "S" + head + body},
		{"S" + head + with(len(body)+1, ""), "S" + head + with(len(body)+1, "")},
		{"S" + head + body + "0000000gP", "S" + head + body + "0000000gP"},
		{"R" + head + with(3, "abc"), "R" + head + with(3, "abc")},
		{"S00000000P", "S00000000P"},
		{"", ""},
	} {
		if event := withoutRecords(c.value); event != c.event {
			t.Errorf("%q: %q", c.value, event)
		}
	}
}
