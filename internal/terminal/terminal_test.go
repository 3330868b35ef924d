package terminal

import (
	"io"
	"os"
	"path/filepath"
	"strings"
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

// Some editors begin a file with a byte order mark.
func TestOpenSkipsAByteOrderMark(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{"\ufeff{}": "{}", "{}": "{}", "": "", "\ufeff": "", "\xef\xbb": "\xef\xbb"} {
		name := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{name, "-"} {
			in, _, err := Open(name, strings.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(in)
			if err != nil || string(got) != want {
				t.Errorf("%s of %q: %q, %v", name, content, got, err)
			}
			if err := in.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	if got := Replace(nil, []byte("a\nb\n")); got != "\x1b[J\x1b[?7la\nb\n\x1b[?7h" {
		t.Errorf("the first: %q", got)
	}
	if got := Replace([]byte("a\nb\n"), []byte("c\n")); got != "\x1b[2A\x1b[J\x1b[?7lc\n\x1b[?7h" {
		t.Errorf("the next: %q", got)
	}
}

func TestFirstLines(t *testing.T) {
	t.Parallel()
	for n, want := range []string{"", "a\n", "a\nb\n", "a\nb\nc", "a\nb\nc"} {
		if got := string(firstLines([]byte("a\nb\nc"), n)); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}
