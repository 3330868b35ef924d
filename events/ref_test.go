package events_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/events"
)

func TestRefText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := events.Ref{
			Company: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "company")),
			ID:      rapid.StringMatching(`[A-Za-z0-9_-]{1,128}`).Draw(t, "id"),
		}
		if back, err := events.ParseRef(r.String()); err != nil || back != r {
			t.Fatalf("ParseRef(%q) = %v, %v", r, back, err)
		}
	})
}

func TestParseRefRefuses(t *testing.T) {
	t.Parallel()
	c := company.String()
	for _, text := range []string{
		"", "/", c, c + "/", "/e", c + "/a.b", c + "/a/b", c + "/" + strings.Repeat("a", 129),
		strings.ToUpper(c) + "/e", "{" + c + "}/e", strings.ReplaceAll(c, "-", "") + "/e",
	} {
		if r, err := events.ParseRef(text); err == nil {
			t.Errorf("ParseRef(%q) = %v, want an error", text, r)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	f.Add(company.String() + "/evt_1")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := events.ParseRef(text); err == nil && r.String() != text {
			t.Errorf("ParseRef(%q).String() = %q", text, r)
		}
	})
}
