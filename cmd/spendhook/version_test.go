package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

// What scripts/version says of a commit is what the go command says of it.
func TestVersionOfCommit(t *testing.T) {
	t.Parallel()
	script, err := filepath.Abs("../../scripts/version")
	if err != nil {
		t.Fatal(err)
	}
	repo := t.TempDir()
	in := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = repo
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com", "GIT_COMMITTER_DATE=2026-11-20T09:30:00+0200")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(repo, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example\n\ngo "+strings.TrimPrefix(runtime.Version(), "go")+"\n")
	write("main.go", "package main\n\nimport (\n\t\"fmt\"\n\t\"runtime/debug\"\n)\n\nfunc main() {\n"+
		"\tb, _ := debug.ReadBuildInfo()\n\ts := map[string]string{}\n\tfor _, x := range b.Settings {\n\t\ts[x.Key] = x.Value\n\t}\n"+
		"\tfmt.Println(b.Main.Version, s[\"vcs.revision\"], s[\"vcs.time\"])\n}\n")
	write(".gitignore", "out\n")
	if out := in("env", "GIT_DIR=/nonexistent", script); out != "" {
		t.Errorf("outside a repository: %s", out)
	}
	in("git", "init", "-q")
	in("git", "add", ".")
	for _, tag := range []string{"", "v0.9.0-rc.1", "", "v1.2.9", "", "not-a-version"} {
		in("git", "commit", "-q", "--allow-empty", "-m", "a change")
		if tag != "" {
			in("git", "tag", tag)
		}
		in("go", "build", "-o", "out", ".")
		if script, binary := in(script), in("./out"); script != binary || (strings.HasPrefix(tag, "v") && !strings.HasPrefix(script, tag+" ")) {
			t.Errorf("tag %q: the script says %s, the go command %s", tag, script, binary)
		}
	}
	write("main.go", "package main\n")
	if out := in(script); !strings.Contains(out, "+dirty ") {
		t.Errorf("with a change: %s", out)
	}
}

func TestVersionCommand(t *testing.T) {
	t.Parallel()
	r := command(t, "", "version", "--json")
	r.want(t, exitOK, `"goVersion":"go1.`, "")
	var b buildInfo
	if err := json.Unmarshal([]byte(r.stdout), &b); err != nil || b.Version == "" || b.Revision == "" || b.Date == "" {
		t.Errorf("%v: %s", err, r.stdout)
	}
}
