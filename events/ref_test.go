package events_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"spendhook/events"
)

func TestValidRefs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := events.Ref{Company: company, ID: rapid.StringMatching(`[A-Za-z0-9_-]{1,128}`).Draw(t, "id")}
		if !r.Valid() {
			t.Fatalf("%q is not valid", r)
		}
	})
}

func TestInvalidRefs(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "a.b", "a/b", "/e", "a b", "ä", strings.Repeat("a", 129)} {
		if r := (events.Ref{Company: company, ID: id}); r.Valid() {
			t.Errorf("%q is valid", r)
		}
	}
}
