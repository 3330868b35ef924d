package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A shell completes commands, flags and the ids that the daemon has.
func TestCompletion(t *testing.T) {
	const id = "0b9d1f7e-0000-4000-8000-000000000001"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/subscribers" || r.Header.Get("Authorization") != "Bearer t" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"content":[{"uuid":"`+id+`"}],"totalPages":1}`)
	}))
	defer api.Close()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("SPENDHOOK_URL", api.URL)
	t.Setenv("SPENDHOOK_TOKEN", "t")
	for line, want := range map[string]string{
		"spendhook event f":           "feed\n",
		"spendhook event feed --sig":  "--signatures\n",
		"spendhook subscriber get ":   id + "\n",
		"spendhook subscriber get 0b": id + "\n",
		"spendhook job get x":         "", // no completion of ids that the token may not read
	} {
		t.Setenv("COMP_LINE", line)
		if r := command(t, ""); r.code != exitOK || r.stdout != want || r.stderr != "" {
			t.Errorf("%q: %d %q %q, want %q", line, r.code, r.stdout, r.stderr, want)
		}
	}
}
