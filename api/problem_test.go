package api

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const errorsFile = "../docs/errors.md"

// TestErrorsAreDocumented writes docs/errors.md when GENERATE is set, as
// make generate does.
func TestErrorsAreDocumented(t *testing.T) {
	t.Parallel()
	if os.Getenv("GENERATE") != "" {
		if err := os.WriteFile(errorsFile, errorsText(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(errorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, errorsText()) {
		t.Error("docs/errors.md is not what openapi.yaml says: run make generate")
	}
}

// errorsText is docs/errors.md.
func errorsText() []byte {
	var b bytes.Buffer
	b.WriteString("# Error codes\n\nEvery error is a problem document (RFC 9457). `code` is stable and meant for programs. `type` links to its entry on this\n" +
		"page, which each daemon also serves at `/docs/errors`. `errors` lists each invalid field by a JSON pointer, with a code of\n" +
		"its own. The errors of `/oauth/token` are those of RFC 6749. This page is written by `make generate`.\n")
	for _, code := range slices.Sorted(maps.Keys(codes())) {
		c := codes()[code]
		fmt.Fprintf(&b, "\n## %s\n\n%s. %s\n\n**What to do:** %s\n", code, shownStatus(c.Status), c.Cause, c.Remedy)
	}
	return b.Bytes()
}

// The document explains every code in the source, and no other.
func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	places := regexp.MustCompile(`(?:newProblem\(|fieldProblem\([^,]+, |\.Add\([^,]+(?:\([^)]*\))?, |\.Err\w+, |keyReused += )"([A-Z][A-Z0-9_]+)"`)
	used := map[string]bool{}
	for _, dir := range []string{".", "../subscribers", "../subscribers/callback", "../subscribers/certificate", "../subscribers/registry", "../events", "../events/eventtype", "../storage", "../storage/cards", "../storage/reimbursements", "../storage/locations", "../storage/billing", "../internal/invalid"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(file, "_test.go") {
				for _, m := range places.FindAllSubmatch(text, -1) {
					used[string(m[1])] = true
				}
			}
		}
	}
	for code, c := range codes() {
		if !used[code] && !ownCode[code] {
			t.Errorf("%s is explained but not used", code)
		}
		if c.Cause == "" || c.Remedy == "" {
			t.Errorf("%s has no cause or remedy", code)
		}
		delete(used, code)
	}
	for code := range used {
		t.Errorf("%s is not explained", code)
	}
}

// The type of a problem links to the explanation of its code.
func TestTypesLeadToTheirExplanation(t *testing.T) {
	t.Parallel()
	h := setup(t)
	page := h.call("GET", "/docs/errors", "", noToken).want(http.StatusOK).Body.String()
	problem := as[struct{ Type, Code string }](h.call("GET", "/none", ""))
	at, anchor, _ := strings.Cut(problem.Type, "#")
	if at != strings.TrimSuffix(h.options.PublicURL, "/")+"/docs/errors" || !strings.Contains(page, `id="`+anchor+`"`) || problem.Code != "NO_SUCH_ROUTE" {
		t.Errorf("type %q", problem.Type)
	}
}
