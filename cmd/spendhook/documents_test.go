package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// documents are the pages of the project, by their path from its root.
func documents(tb testing.TB) map[string]string {
	tb.Helper()
	root, found := filepath.Join("..", ".."), map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata" || name == "bin") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		found[relative] = string(text)
		return err
	})
	if err != nil || len(found) < 20 {
		tb.Fatalf("%d documents: %v", len(found), err)
	}
	return found
}

var (
	codeBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)
	testFunc  = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName  = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")
	mdHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// anchor is how a forge names a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

// Each test that these pages name as evidence exists.
func TestTestsOfDocumentsExist(t *testing.T) {
	t.Parallel()
	root, exists := filepath.Join("..", ".."), map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range testFunc.FindAllStringSubmatch(string(text), -1) {
			exists[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	all := documents(t)
	for page, least := range map[string]int{"docs/compliance.md": 30, "docs/security.md": 30, "docs/reading.md": 9} {
		named := testName.FindAllStringSubmatch(all[page], -1)
		if len(named) < least {
			t.Errorf("%s names %d tests", page, len(named))
		}
		for _, found := range named {
			if !exists[found[1]] {
				t.Errorf("%s names %s, which does not exist", page, found[1])
			}
		}
	}
}

func TestLinksOfDocuments(t *testing.T) {
	t.Parallel()
	all := documents(t)
	for page, text := range all {
		for _, m := range mdLink.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			link := m[1] + m[2]
			if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			}
			path, fragment, _ := strings.Cut(link, "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(filepath.Join("..", "..", target)); err != nil {
				t.Errorf("%s: %s leads nowhere", page, link)
				continue
			}
			if fragment == "" {
				continue
			}
			found := false
			for _, h := range mdHeading.FindAllStringSubmatch(codeBlock.ReplaceAllString(all[target], ""), -1) {
				found = found || anchor(h[1]) == fragment
			}
			if !found {
				t.Errorf("%s: %s has no heading %q", page, target, fragment)
			}
		}
	}
}
