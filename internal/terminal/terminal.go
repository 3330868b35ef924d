// Package terminal formats output for people: colors and progress on terminals, and escaped
// control characters.
package terminal

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
)

// Replace is what a terminal must be sent to show lines in place of others that it was sent last. What is wider than the
// terminal is cut.
func Replace(last, now []byte) string {
	up := ""
	if n := bytes.Count(last, []byte{'\n'}); n > 0 {
		up = fmt.Sprintf("\x1b[%dA", n)
	}
	return up + "\x1b[J\x1b[?7l" + string(now) + "\x1b[?7h"
}

// Fit returns the first lines of a text, as many as a terminal shows at once.
func Fit(out io.Writer, text []byte) []byte {
	f, ok := out.(*os.File)
	if !ok {
		return text
	}
	_, height, err := term.GetSize(int(f.Fd()))
	if err != nil || height < 2 {
		return text
	}
	return firstLines(text, height-1)
}

func firstLines(text []byte, n int) []byte {
	end := 0
	for range n {
		at := bytes.IndexByte(text[end:], '\n')
		if at < 0 {
			return text
		}
		end += at + 1
	}
	return text[:end]
}

// Is reports whether a reader or writer is a terminal.
func Is(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colors reports whether output to w is colored: w is a terminal, and NO_COLOR (no-color.org) is not
// set.
func Colors(w any) bool { return Is(w) && os.Getenv("NO_COLOR") == "" }

// Escape replaces characters that move a terminal's cursor, change its colors or hide text by their
// JSON escapes, except the characters of keep. JSON stays valid, because it has such characters only
// in strings.
func Escape(text, keep string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Open opens a file, or standard input for "-"; size is in bytes, 0 when it is unknown.
func Open(name string, stdin io.Reader) (in io.ReadCloser, size int64, err error) {
	if name == "-" {
		return io.NopCloser(withoutMark(stdin)), fileSize(stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	return struct {
		io.Reader
		io.Closer
	}{withoutMark(f), f}, fileSize(f), nil
}

// withoutMark skips a byte order mark of UTF-8, with which some editors begin a file.
func withoutMark(in io.Reader) io.Reader {
	const mark = "\ufeff"
	out := bufio.NewReader(in)
	if begin, _ := out.Peek(len(mark)); string(begin) == mark {
		_, _ = out.Discard(len(mark))
	}
	return out
}

func fileSize(in io.Reader) int64 {
	f, ok := in.(*os.File)
	if !ok {
		return 0
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}
