//go:build examples

package main

import (
	"html"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"spendhook/internal/porttest"
)

// startProvider starts testdata/oidc until the test ends, and returns its issuer.
func startProvider(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "node", append([]string{filepath.Join("testdata", "oidc", "provider.mjs")}, args...)...)
	issuer, _ := startListening(t, cmd, &lockedBuffer{})
	return issuer
}

var formAction = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)

// signInAs signs in at oidc-provider, through its pages for a name and for the consent. It returns the answer to the
// callback, and the callback's address.
func (v *visitor) signInAs(name string) (status int, page, callback string) {
	v.t.Helper()
	at, err := url.Parse(v.base + "/console/login")
	if err != nil {
		v.t.Fatal(err)
	}
	method, answers := http.MethodGet, url.Values(nil)
	for range 20 {
		var header http.Header
		status, header, page = v.visit(method, at.String(), answers)
		to, form := header.Get("Location"), formAction.FindStringSubmatch(page)
		switch {
		case at.Path == "/console/login/callback":
			return status, page, at.String()
		case to != "":
			method, answers = http.MethodGet, nil
		case form != nil && strings.Contains(page, `value="login"`):
			to, method, answers = html.UnescapeString(form[1]), http.MethodPost, url.Values{"prompt": {"login"}, "login": {name}, "password": {"any"}}
		case form != nil:
			to, method, answers = html.UnescapeString(form[1]), http.MethodPost, url.Values{"prompt": {"consent"}}
		default:
			v.t.Fatalf("%s: %d %v %s", at, status, header, page)
		}
		if at, err = at.Parse(to); err != nil {
			v.t.Fatal(err)
		}
	}
	v.t.Fatal("the login does not end")
	return 0, "", ""
}

// TestExampleConsoleLogin: users sign in at npm's oidc-provider, which requires PKCE.
func TestExampleConsoleLogin(t *testing.T) {
	t.Parallel()
	for _, variant := range []string{"usual", "other"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			address := "127.0.0.1:" + strconv.Itoa(porttest.Free(t))
			issuer := startProvider(t, "http://"+address+"/console/login/callback", variant)
			d := newInstallation(t, sharedRedis(t), loginSettings(issuer, "a secret with: % + spaces")).start(t, "--listen", address)
			operator := newVisitor(t, d.api)
			status, page, callback := operator.signInAs("operators-ann")
			if status != http.StatusOK || !strings.Contains(page, "Signed in") {
				t.Fatalf("%d %s", status, page)
			}
			if status, _, page := operator.get("/console/audit"); status != http.StatusOK || !strings.Contains(page, issuer+"|operators-ann") || !strings.Contains(page, "operators-ann@example.com") {
				t.Errorf("the audit log: %d %s", status, page)
			}
			if status, _, _ := operator.get("/console/system"); status != http.StatusOK {
				t.Errorf("the system: %d", status)
			}
			if status, _, page := operator.visit(http.MethodGet, callback, nil); status != http.StatusBadRequest {
				t.Errorf("the callback again: %d %s", status, page)
			}
			helper := newVisitor(t, d.api)
			helper.signInAs("helpers-bob")
			for path, want := range map[string]int{"/console/deliveries": 200, "/console/audit": 403, "/console/quarantine": 403} {
				if status, _, page := helper.get(path); status != want {
					t.Errorf("support, %s: %d %s", path, status, page)
				}
			}
			if status, page, _ := newVisitor(t, d.api).signInAs("customers-cleo"); status != http.StatusOK || strings.Count(page, `name="link"`) != 2 {
				t.Errorf("a user of two companies: %d %s", status, page)
			}
			if status, page, _ := newVisitor(t, d.api).signInAs("guests-eve"); status != http.StatusForbidden || !strings.Contains(page, "No access") {
				t.Errorf("a user without a role: %d %s", status, page)
			}
			if log := d.stderr.String(); strings.Contains(log, "a secret with") || strings.Contains(log, "code=") {
				t.Error("the log has a secret")
			}
		})
	}
}
