package main

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"spendhook/config"
	"spendhook/console/login/logintest"
)

// loginSettings are the settings of a daemon whose users sign in at the provider.
func loginSettings(issuer, secret string) string {
	return fmt.Sprintf(`
console:
  login:
    issuer: %q
    client_id: hooks
    client_secret: %q
    company_claim: company
    roles:
      - {group: operators, role: operator}
      - {group: helpers, role: support}
      - {group: customers, role: company-reader}
      - {group: acme, role: company-admin, company: %s}
`, issuer, secret, developerCompany)
}

// signIn follows the redirects to the provider and back, and returns the page after them.
func (v *visitor) signIn() (status int, header http.Header, page string) {
	v.t.Helper()
	status, header, page = v.get("/console/login")
	for range 10 {
		to := header.Get("Location")
		if to == "" {
			return status, header, page
		}
		status, header, page = v.visit(http.MethodGet, to, nil)
	}
	v.t.Fatal("the redirects do not end")
	return 0, nil, ""
}

// visit sends a request to any address.
func (v *visitor) visit(method, address string, form url.Values) (status int, header http.Header, page string) {
	v.t.Helper()
	elsewhere := &visitor{v.t, "", v.http}
	return elsewhere.send(method, address, form)
}

// TestConsoleLogin: a visitor of / signs in at the provider, works, and signs out. Without the provider in the settings
// the session ends.
func TestConsoleLogin(t *testing.T) {
	t.Parallel()
	provider := logintest.New(t)
	w := newStory(t, loginSettings(provider.Issuer, logintest.ClientSecret))
	provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"operators"}, "email": "ann@example.com"})
	v := newVisitor(t, w.daemon.api)
	if status, header, _ := v.get("/"); status != http.StatusSeeOther || header.Get("Location") != "/console/" {
		t.Fatalf("/: %d %v", status, header)
	}
	if status, _, page := v.get("/console/"); status != http.StatusUnauthorized || !strings.Contains(page, `href="/console/login"`) {
		t.Fatalf("without a session: %d %s", status, page)
	}
	if status, header, page := v.signIn(); status != http.StatusOK || header.Get("Refresh") != "0; url=/console/" {
		t.Fatalf("sign in: %d %v %s", status, header, page)
	}
	if status, _, page := v.get("/console/"); status != http.StatusOK || !strings.Contains(page, "All companies") {
		t.Errorf("the overview: %d %s", status, page)
	}
	if status, _, page := v.get("/console/audit"); status != http.StatusOK || !strings.Contains(page, "|ann") || !strings.Contains(page, "ann@example.com") {
		t.Errorf("the audit log: %d %s", status, page)
	}
	other := newVisitor(t, w.daemon.api)
	provider.SignIn(map[string]any{"sub": "eve", "groups": []string{"guests"}})
	if status, _, page := other.signIn(); status != http.StatusForbidden || !strings.Contains(page, "No access") {
		t.Errorf("without a role: %d %s", status, page)
	}
	if status, _, page := v.post("/console/leave", url.Values{"token": {v.token()}}); status != http.StatusOK || !strings.Contains(page, `href="/console/login"`) {
		t.Errorf("sign out: %d %s", status, page)
	}
	if status, _, _ := v.get("/console/"); status != http.StatusUnauthorized {
		t.Errorf("after that: %d", status)
	}
	_, metrics := get(t, w.daemon.admin+"/metrics")
	for _, line := range []string{`spendhook_console_logins_total{result="success"} 1`, `spendhook_console_logins_total{result="no_access"} 1`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	provider.SignIn(map[string]any{"sub": "ann", "groups": []string{"operators"}})
	v.signIn()
	w.daemon.stop(t)
	w.home.settings(t, "")
	w.daemon = w.home.start(t)
	jar := v.http.Jar
	v = newVisitor(t, w.daemon.api) // which has another port, that cookies do not tell apart
	v.http.Jar = jar
	if status, _, page := v.get("/console/"); status != http.StatusUnauthorized || strings.Contains(page, "/console/login") {
		t.Errorf("without a provider in the settings: %d %s", status, page)
	}
}

// A login is not enough for what needs a client certificate in the API, unless the settings say so.
func TestALoginNeedsTheCertificatesOfTheAPI(t *testing.T) {
	t.Parallel()
	environ := []string{"SPENDHOOK_TLS_TRUSTED_PROXIES=10.0.0.0/8"}
	cfg, err := config.LoadDaemon("", environ, nil)
	if err != nil || !loginCertificates(&cfg)["subscribers"] || loginCertificates(&cfg)["events"] {
		t.Errorf("by default: %v, %v", loginCertificates(&cfg), err)
	}
	cfg, err = config.LoadDaemon("", append(environ, "SPENDHOOK_CONSOLE_LOGIN_CLIENT_CERTIFICATES=optional"), nil)
	if err != nil || loginCertificates(&cfg)["subscribers"] {
		t.Errorf("optional: %v, %v", loginCertificates(&cfg), err)
	}
}

func TestDoctorChecksTheLoginProvider(t *testing.T) {
	t.Parallel()
	provider := logintest.New(t)
	h := newInstallation(t, "redis://127.0.0.1:1", "")
	args := []string{"--config", filepath.Join(h.dir, "config.yml"), "--data-dir", h.dir}
	h.settings(t, "dev: true\nredis: redis://127.0.0.1:1\n"+loginSettings(provider.Issuer, "s"))
	wantFound(t, found(t, exitFailure, args...), map[string]string{"console login": findingOK, "Redis": findingProblem})
	provider.Set(func(s *logintest.State) { s.Discovery = map[string]any{"issuer": "https://login.example.com"} })
	if f := found(t, exitFailure, args...)["console login"]; f.Result != findingProblem || !strings.Contains(f.Message, "did not match") {
		t.Errorf("another issuer: %+v", f)
	}
	h.settings(t, "dev: true\nredis: redis://127.0.0.1:1\n")
	wantFound(t, found(t, exitFailure, args...), map[string]string{"console login": findingOK})
}
