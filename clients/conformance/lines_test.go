package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The table of docs/receiving.md says how many lines a receiver takes with a library and by hand.
func TestLinesOfReceivers(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "receiving.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range []struct {
		name, block string
		files       []string
	}{
		{"Go", "go", []string{"go/receiver/receiver.go"}},
		{"TypeScript", "ts", []string{"node/inbox.mjs", "node/receiver.mjs"}},
		{"Python", "python", []string{"python/receiver.py"}},
		{"Java", "java", []string{"java/Receiver.java"}},
	} {
		block := regexp.MustCompile("(?s)```" + language.block + "\n(.*?)```").FindSubmatch(page)
		if block == nil {
			t.Errorf("no receiver in %s", language.name)
			continue
		}
		byHand := 0
		for _, file := range language.files {
			text, err := os.ReadFile(filepath.Join(root, "examples", filepath.FromSlash(file)))
			if err != nil {
				t.Fatal(err)
			}
			byHand += lines(string(text))
		}
		if row := fmt.Sprintf("| %s | %d | %d |", language.name, lines(string(block[1])), byHand); !strings.Contains(string(page), row) {
			t.Errorf("docs/receiving.md has not the row %s", row)
		}
	}
}

// lines counts those that are not blank.
func lines(text string) (n int) {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	return n
}
