package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// For any source, the reader returns each JSON object once, in order, in batches that fit a
// request. It reports every other line that is not blank.
func TestLineReader(t *testing.T) {
	t.Parallel()
	kinds := rapid.SampledFrom([]string{`{"a":1}`, "", "  ", "{", "[1]", `{"a":1,"a":2}`, "\xff", "big"})
	rapid.Check(t, func(t *rapid.T) {
		var lines []string
		for i, kind := range rapid.SliceOfN(kinds, 0, 60).Draw(t, "lines") {
			if kind == "big" {
				kind = fmt.Sprintf(`{"n":%d,"pad":%q}`, i, strings.Repeat("x", 700<<10))
			}
			lines = append(lines, kind)
		}
		source := strings.Join(lines, "\n")
		r := newLineReader(strings.NewReader(source))
		good, bad, last := 0, 0, 0
		for {
			batch, err := r.next()
			size := 2
			for _, l := range batch {
				if l.number <= last || !bytes.Equal(l.text, []byte(strings.TrimSpace(lines[l.number-1]))) {
					t.Fatalf("line %d after %d: %.40q", l.number, last, l.text)
				}
				last = l.number
				size += len(l.text) + 1
			}
			if len(batch) > 1000 || size > 8<<20 {
				t.Fatalf("a batch of %d lines and %d bytes", len(batch), size)
			}
			good, bad = good+len(batch), bad+len(r.bad)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		wantGood, wantBad := 0, 0
		for _, l := range lines {
			switch text := strings.TrimSpace(l); {
			case text == "":
			case isObject([]byte(text)):
				wantGood++
			default:
				wantBad++
			}
		}
		if good != wantGood || bad != wantBad || r.read != int64(len(source)) {
			t.Fatalf("good %d of %d, bad %d of %d, read %d of %d", good, wantGood, bad, wantBad, r.read, len(source))
		}
	})
}

func TestLineReaderRefusesAnEndlessLine(t *testing.T) {
	t.Parallel()
	if _, err := newLineReader(zeros{}).next(); err == nil || !strings.Contains(err.Error(), "line 1 is longer") {
		t.Errorf("got %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
