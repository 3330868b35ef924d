package terminal

import (
	"io"
	"testing"
)

func TestProgressLine(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"███████████████░░░░░░░░░░░░░░░  50%  100 events  50/s": progressLine("events", 100, 5, 10, 2e9),
		"100 events  50/s": progressLine("events", 100, 5, 0, 2e9),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestEscape(t *testing.T) {
	t.Parallel()
	if got := Escape("a\x1b[2J\n\u202e\U000E0001ä", "\n"); got != "a\\u001b[2J\n\\u202e\\udb40\\udc01ä" {
		t.Errorf("%q", got)
	}
	if Is(io.Discard) || Colors(io.Discard) {
		t.Error("a writer is taken for a terminal")
	}
}
