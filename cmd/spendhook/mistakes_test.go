package main

import (
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// What a newcomer types wrong is answered with the next step, at once where waiting does
// not help.
func TestMistakesNameTheNextStep(t *testing.T) {
	t.Parallel()
	nowhere := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"code":"NO_SUCH_ROUTE","detail":"There is nothing at this path."}`))
	})
	plain, secure, strict := httptest.NewServer(nowhere), httptest.NewTLSServer(nowhere), httptest.NewUnstartedServer(nowhere)
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	strict.StartTLS()
	for _, server := range []*httptest.Server{plain, secure, strict} {
		t.Cleanup(server.Close)
	}
	authority := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(authority, text, 0o600); err != nil {
		t.Fatal(err)
	}
	port := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	with := func(verb, url string, more ...string) []string {
		return append([]string{"event", verb, "--token-file", secretFile(t, "x"), "--cacert", authority, "--url", url}, more...)
	}
	for name, tc := range map[string]struct {
		args     []string
		code     int
		inStderr string
	}{
		"http to TLS":             {with("list", "http://"+port(secure)), exitFailure, "begin it with https://"},
		"https to clear":          {with("list", "https://"+port(plain)), exitFailure, "begin --url with http://"},
		"another path":            {with("list", secure.URL+"/hooks"), exitNotFound, "Is --url (SPENDHOOK_URL, or the profile's) the address of a daemon?"},
		"a CA that is not known":  {[]string{"event", "list", "--token-file", secretFile(t, "x"), "--url", secure.URL}, exitFailure, "give its CA with --cacert"},
		"no client certificate":   {with("list", strict.URL), exitNotAllowed, "Give a certificate with --cert and --key"},
		"nobody there":            {with("list", "http://127.0.0.1:1", "--retry-for", "3s"), exitUnavailable, "refused; retrying for 3s\n"},
		"a profile that is not":   {[]string{"profile", "delete", "nobody"}, exitUsage, "'spendhook profile list'"},
		"metadata that is no map": {with("send", secure.URL, "--event", "X", "--metadata", "[1]"), exitUsage, "--metadata is not a JSON object"},
		"a flag of another verb":  {[]string{"subscriber", "get", "--event", "X"}, exitUsage, "Run 'spendhook subscriber get --help'.\n"},
		"a verb that is not":      {[]string{"subscriber", "show"}, exitUsage, "Run 'spendhook subscriber --help'.\n"},
		"no certificates":         {[]string{"oauth-client", "update", "shc_1", "--token-file", secretFile(t, "x")}, exitUsage, "--certificate or --any-certificate is needed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			command(t, "", tc.args...).want(t, tc.code, "", tc.inStderr)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("answered after %v", took)
			}
		})
	}
}
