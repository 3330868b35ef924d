package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spendhook/internal/pgtest"
)

// A deployment may run init at every start: existing files are kept.
func TestInit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "init")
	args := []string{"init", "--dir", dir, "--host", "hooks.example.com", "--storage", pgtest.New(t), "--data-dir", emptyDir(t)}
	first := command(t, "", args...)
	first.want(t, exitOK, "https://hooks.example.com:8443/oauth/token", "")
	read := func() string {
		t.Helper()
		var all strings.Builder
		for _, name := range []string{"ca.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem", "encryption.key"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		return all.String()
	}
	before := read()
	second := command(t, "", args...)
	second.want(t, exitOK, first.stdout, "")
	if read() != before {
		t.Error("a second run has changed the files")
	}
	command(t, "", append(args, "--host", "other.example.com")...).want(t, exitOK, "client shc_", "")
	if read() == before {
		t.Error("the server's certificate does not have the new host")
	}
}
