//go:build examples

package conformance_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"spendhook/clients/conformance"
	"spendhook/internal/pgtest"
	"spendhook/internal/porttest"
)

// The libraries for the other languages pass their own tests, and do what that for Go does (TestGo).
func TestExampleLibraries(t *testing.T) {
	t.Parallel()
	clients, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	python, all := findPython(t)
	const url = "postgresql://%[3]s@%[1]s/%[2]s"
	node := filepath.Join(clients, "typescript", "node_modules", "node", "bin", "node") // the oldest that has SQLite
	java := conformance.Options{Command: []string{filepath.Join(clients, "java", "conformance.sh")}, Database: "jdbc:sqlite:{}"}
	postgres := postgresURL(t)
	var drivers, databases []string
	for driver, database := range map[string]string{
		"sqlite-jdbc": "jdbc:sqlite:{}/inbox.db?busy_timeout=20000", "h2": "jdbc:h2:{}/inbox", "postgresql": "jdbc:" + postgres("java", "postgresql://%s/%s?user=%s"),
	} {
		jar := "/usr/share/java/" + driver + ".jar"
		if _, err := os.Stat(jar); err != nil {
			t.Log("Java without a database:", err)
			continue
		}
		drivers, databases = append(drivers, jar), append(databases, database)
	}
	javaTests := []string{"env", "JDBC=" + strings.Join(drivers, ":"), "DATABASES=" + strings.Join(databases, " "), "./test.sh"}
	if _, err := os.Stat("/usr/share/java/sqlite-jdbc.jar"); err != nil {
		java.Database, javaTests = "none", []string{"./build.sh"}
	}
	for name, language := range map[string]struct {
		tests   []string // which build the library, too
		options conformance.Options
	}{
		"typescript": {[]string{"env", "SPENDHOOK_POSTGRES=" + postgres("typescript", url), "npm", "test"}, conformance.Options{Command: []string{node, filepath.Join(clients, "typescript", "conformance.mjs")}}},
		"python": {
			[]string{"env", "SPENDHOOK_REQUIRE_ALL=" + all, "SPENDHOOK_POSTGRES=" + postgres("python", url), python, "-m", "unittest", "discover", "-s", "tests"},
			conformance.Options{Command: []string{python, filepath.Join(clients, "python", "conformance.py")}},
		},
		"java": {javaTests, java},
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

// The types of the TypeScript client are those of the API document.
func TestExampleTypesAreCurrent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "api.ts")
	generate := exec.CommandContext(t.Context(), "node_modules/.bin/openapi-typescript", "../../api/openapi.yaml", "--output", file)
	generate.Dir = "../typescript"
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("../typescript/src/api.gen.ts"); err != nil || string(got) != string(want) {
		t.Errorf("src/api.gen.ts is another: run npm run generate in clients/typescript; %v", err)
	}
}

// postgresURL starts a server of PostgreSQL and returns a function that makes an empty database in it, and returns its URL in
// a format of address, database and user.
func postgresURL(t *testing.T) func(name, format string) string {
	t.Helper()
	port := strconv.Itoa(porttest.Free(t))
	url, remove, err := pgtest.Launch("listen_addresses=127.0.0.1", "port="+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return func(name, format string) string {
		if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(format, "127.0.0.1:"+port, name, conn.Config().User)
	}
}

// findPython returns a Python that has the libraries that the tests use, and whether it has all of them: 1 or 0. The
// packages of the system are not for every python3.
func findPython(t *testing.T) (python, all string) {
	t.Helper()
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), python, "-c", "import cryptography, flask, psycopg2, starlette, uvicorn").Run() == nil {
			return python, "1"
		}
	}
	return "python3", "0"
}
