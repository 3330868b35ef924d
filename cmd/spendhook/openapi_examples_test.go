//go:build examples

package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestExampleDocumentsPassTheLinters: the documents of the API and of the webhooks have no error by the default rules of
// Redocly and of Spectral.
func TestExampleDocumentsPassTheLinters(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	for _, name := range []string{"openapi.json", "webhooks.json"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, _, document := d.do(t, http.MethodGet, "/"+name, "")
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, document)
			}
			file := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, command := range [][]string{
				{"npx", "--no-install", "redocly", "lint", "--extends=recommended", file},
				{"npx", "--no-install", "spectral", "lint", "--ruleset=.spectral.yaml", file},
			} {
				lint := exec.CommandContext(t.Context(), command[0], command[1:]...)
				lint.Dir = filepath.Join("testdata", "openapi")
				if out, err := lint.CombinedOutput(); err != nil {
					t.Errorf("%v: %v\n%s", command, err, out)
				}
			}
		})
	}
}
