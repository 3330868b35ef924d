package remote

import (
	"strings"
	"testing"
)

// The command line warns before it sends a token to another machine in clear.
func TestPlainHTTPToAnotherMachineIsWarnedOf(t *testing.T) {
	for url, want := range map[string]string{
		"http://hooks.example.com:8080/": "hooks.example.com:8080", "HTTP://192.0.2.1": "192.0.2.1",
		"https://hooks.example.com": "", "http://localhost:8080": "", "http://127.0.0.1:8080": "", "http://[::1]:8080": "", "http://localhost.example.com": "localhost.example.com",
	} {
		t.Setenv("HOME", t.TempDir())
		t.Setenv("XDG_CONFIG_HOME", t.TempDir())
		var err strings.Builder
		c := &Connection{URL: url, Profile: "default"}
		if _, e := c.options(&Terminal{Err: &err}); e != nil {
			t.Fatal(e)
		}
		login := &loginCmd{Connection: Connection{URL: url, Profile: "default"}, ClientID: "c"}
		if e := login.Run(t.Context(), &Terminal{Err: &err, In: strings.NewReader("")}); e == nil { // it finds no secret
			t.Error("logged in")
		}
		if n := strings.Count(err.String(), "in clear"); want != "" && n != 2 {
			t.Errorf("%s: login does not warn: %q", url, err.String())
		}
		if got := err.String(); (got != "") != (want != "") || !strings.Contains(got, want) || want != "" && !strings.Contains(got, "use https") {
			t.Errorf("%s: %q", url, got)
		}
	}
}
