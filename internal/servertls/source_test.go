package servertls

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestInvalidFilesAreReportedOnce: at the second check in a row that finds them, and again after they were
// valid.
func TestInvalidFilesAreReportedOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	s := &source{paths: []string{path}, use: func(contents [][]byte) error {
		if string(contents[0]) == "good" {
			return nil
		}
		return errors.New("broken")
	}}
	for i, step := range []struct {
		text    string // "" for no file
		changed bool
		told    bool
	}{
		{"good", true, false},
		{"good", false, false},
		{"bad", false, false},
		{"bad", false, true},
		{"bad", false, false},
		{"worse", false, false},
		{"", false, false},
		{"good", false, false}, // as it was all the time
		{"bad", false, false},
		{"good", false, false},
		{"bad", false, false},
		{"bad", false, true},
	} {
		_ = os.Remove(path)
		if step.text != "" {
			if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		changed, err := s.look()
		if told := err != nil && s.failures == 2; changed != step.changed || told != step.told {
			t.Errorf("step %d, %q: changed %v, told %v (%v)", i, step.text, changed, told, err)
		}
	}
}
