//go:build examples

package conformance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"spendhook/clients/conformance"
)

// The libraries for the other languages pass their own tests, and do what that for Go does (TestGo).
func TestExampleLibraries(t *testing.T) {
	t.Parallel()
	clients, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	python, all := findPython(t)
	node := filepath.Join(clients, "typescript", "node_modules", "node", "bin", "node") // the oldest that has SQLite
	java := conformance.Options{Command: []string{filepath.Join(clients, "java", "conformance.sh")}, Database: "jdbc:sqlite:{}"}
	javaTests := "./test.sh"
	if _, err := os.Stat("/usr/share/java/sqlite-jdbc.jar"); err != nil {
		java.Database, javaTests = "none", "./build.sh"
	}
	for name, language := range map[string]struct {
		tests   []string // which build the library, too
		options conformance.Options
	}{
		"typescript": {[]string{"npm", "test"}, conformance.Options{Command: []string{node, filepath.Join(clients, "typescript", "conformance.mjs")}}},
		"python": {
			[]string{"env", "SPENDHOOK_REQUIRE_ALL=" + all, python, "-m", "unittest", "discover", "-s", "tests"},
			conformance.Options{Command: []string{python, filepath.Join(clients, "python", "conformance.py")}},
		},
		"java": {[]string{javaTests}, java},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tests := exec.CommandContext(t.Context(), language.tests[0], language.tests[1:]...)
			tests.Dir = filepath.Join(clients, name)
			if out, err := tests.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			test(t, language.options)
		})
	}
}

// findPython returns a Python that has the libraries that the tests use, and whether it has all of them: 1 or 0. The
// packages of the system are not for every python3.
func findPython(t *testing.T) (python, all string) {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import cryptography, flask, starlette, uvicorn").Run() == nil {
			return python, "1"
		}
	}
	return "python3", "0"
}
