package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"spendhook/config"
)

// The configuration accepts the environment variables that commands read.
func TestCommandVariablesAreNoSettings(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	below, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, below...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`(?:env:|Getenv\()"(SPENDHOOK_[A-Z_,]+)`).FindAllStringSubmatch(string(text), -1) {
			for name := range strings.SplitSeq(found[1], ",") {
				if _, err := config.Load("", []string{name + "=127.0.0.1:1"}, nil); err != nil && strings.Contains(err.Error(), "no such setting") {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
}
