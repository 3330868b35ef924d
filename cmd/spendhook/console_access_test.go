package main

import (
	"crypto/x509"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// TestConsoleEndsAccess: an operator ends a session and disables a client that has leaked.
func TestConsoleEndsAccess(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	token := secretFile(t, w.mint(""))
	made := command(t, "", "oauth-client", "create", "--name", "Leaky <i>ledger</i>", "--for-company", developerCompany.String(), "--scope", "events:write", "--url", w.daemon.api, "--token-file", token, "-o", "json")
	made.want(t, exitOK, "shs_", "")
	client := regexp.MustCompile(`shc_[0-9a-f]+`).FindString(made.stdout)

	own := newVisitor(t, w.daemon.api)
	own.enter(w.daemon.consoleLink(t))
	if _, _, page := own.get("/console/access"); strings.Contains(page, client) || strings.Count(page, "This session") != 1 {
		t.Errorf("of a company: %s", page)
	}
	own.submit(http.StatusForbidden, "/console/access/clients/"+client, url.Values{"disabled": {"true"}})

	v := w.session(t)
	_, _, page := v.get("/console/access")
	if !strings.Contains(page, client) || !strings.Contains(page, "Leaky &lt;i&gt;ledger&lt;/i&gt;") || strings.Contains(page, "shs_") {
		t.Fatalf("all: %s", page)
	}
	if to := v.submit(http.StatusSeeOther, "/console/access/clients/"+client, url.Values{"disabled": {"true"}}); to != "/console/access?done=client-disabled" {
		t.Error(to)
	}
	command(t, "", "oauth-client", "get", client, "--url", w.daemon.api, "--token-file", token, "-o", "json").want(t, exitOK, `"disabled": true`, "")
	v.submit(http.StatusSeeOther, "/console/access/clients/"+client, url.Values{"disabled": {"false"}})
	command(t, "", "oauth-client", "get", client, "--url", w.daemon.api, "--token-file", token, "-o", "json").want(t, exitOK, `"disabled": false`, "")

	v.submit(http.StatusBadRequest, "/console/access/clients/"+client, url.Values{})
	v.submit(http.StatusNotFound, "/console/access/clients/shc_none", url.Values{"disabled": {"true"}})
	ends := regexp.MustCompile(`/console/access/sessions/[0-9a-f-]{36}/end`).FindAllString(page, -1)
	if len(ends) != 2 {
		t.Fatalf("sessions: %q", ends)
	}
	_, _, page = own.get("/console/access")
	end := regexp.MustCompile(`/console/access/sessions/[0-9a-f-]{36}/end`).FindString(page)
	v.submit(http.StatusSeeOther, end, url.Values{})
	if status, _, _ := own.get("/console/"); status != http.StatusUnauthorized {
		t.Errorf("the ended session: %d", status)
	}
	v.submit(http.StatusNotFound, end, url.Values{})
	mine := regexp.MustCompile(`/console/access/sessions/[0-9a-f-]{36}/end`)
	_, _, page = v.get("/console/access")
	if page := v.submit(http.StatusOK, mine.FindString(page), url.Values{}); !strings.Contains(page, "Signed out") {
		t.Errorf("its own: %s", page)
	}
	_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit?action=console-session.end", "")
	if strings.Count(log, `"console-session.end"`) != 1 {
		t.Errorf("the audit log: %s", log)
	}
}

// TestConsoleErasesACompany only once the form repeats the start of its UUID.
func TestConsoleErasesACompany(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.well = w.subscribe("Ledger", "/well/x", "PAYMENT_PAID")
	v := w.session(t)
	path := "/console/companies/" + developerCompany.String() + "/erase"
	support := w.session(t, "--scope", "platform events:read deliveries:read")
	support.submit(http.StatusForbidden, path, url.Values{"confirm": {developerCompany.String()[:8]}})
	if status, _, _ := support.get("/console/access"); status != http.StatusForbidden {
		t.Errorf("support sees who has access: %d", status)
	}
	for _, wrong := range []string{"", "erase", strings.ToUpper(developerCompany.String()[:8])} {
		v.submit(http.StatusBadRequest, path, url.Values{"confirm": {wrong}})
	}
	job := v.submit(http.StatusSeeOther, path, url.Values{"confirm": {developerCompany.String()[:8]}})
	eventually(t, patience, "it is erased", func() bool {
		_, _, page := v.get(job)
		return strings.Contains(page, "Completed")
	})
	if status, _, text := w.daemon.do(t, http.MethodGet, "/api/v1/subscribers/"+w.well, ""); status != http.StatusNotFound {
		t.Errorf("its subscriber: %d %s", status, text)
	}
}

// TestConsoleRevokesASigningKey: the next key signs in its place. The keys are rotated when that is allowed.
func TestConsoleRevokesASigningKey(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	w.subscribe("Ledger", "/well/x", "PAYMENT_PAID")
	keys := func() map[string]string { return kids(t, w.daemon.cli(t, "", "webhook-key", "list", "-o", "json")) }
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	signs := func() string {
		t.Helper()
		_, _, page := v.get("/console/subscribers")
		found := regexp.MustCompile(`(?i)signing</span></td><td class="grow"><code>([^<]+)</code></td><td>ed25519<`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("want one key that signs with ed25519: %s", page)
		}
		return found[0][1]
	}
	first := keys()
	leaked := first["ed25519 SIGNING"]
	if got := signs(); got != leaked {
		t.Errorf("%s signs, want %s", got, leaked)
	}
	if page := v.submit(http.StatusConflict, "/console/webhook-keys/rotate", url.Values{}); !strings.Contains(page, "rotate ten minutes after the last rotation") {
		t.Errorf("rotated at once: %s", page)
	}
	if to := v.submit(http.StatusSeeOther, "/console/webhook-keys/"+leaked+"/revoke", url.Values{}); to != "/console/subscribers?done=revoked" {
		t.Error(to)
	}
	if got := signs(); got != first["ed25519 NEXT"] || got != keys()["ed25519 SIGNING"] {
		t.Errorf("%s signs, want %s", got, first["ed25519 NEXT"])
	}
	v.submit(http.StatusNotFound, "/console/webhook-keys/"+leaked+"/revoke", url.Values{})

	w.home.damageKeys(t) // keys that nobody can decrypt are replaced at any time
	if _, _, page := v.get("/console/subscribers"); !strings.Contains(page, "They cannot be decrypted") || !strings.Contains(page, "/console/webhook-keys/rotate") {
		t.Errorf("with locked keys: %s", page)
	}
	if to := v.submit(http.StatusSeeOther, "/console/webhook-keys/rotate", url.Values{}); to != "/console/subscribers?done=rotated" {
		t.Error(to)
	}
	if got := signs(); got != keys()["ed25519 SIGNING"] || got == first["ed25519 NEXT"] {
		t.Errorf("after the rotation %s signs", got)
	}
	for action, target := range map[string]string{"webhook-key.revoke": leaked, "webhook-key.rotate": developerCompany.String()} {
		_, _, log := w.daemon.do(t, http.MethodGet, "/api/v1/audit?action="+action, "")
		if !strings.Contains(log, `"`+action+`"`) || !strings.Contains(log, target) {
			t.Errorf("the audit log of %s of %s: %s", action, target, log)
		}
	}
}

// TestConsoleSetsACertificate of a subscriber, and removes it.
func TestConsoleSetsACertificate(t *testing.T) {
	t.Parallel()
	w := newStory(t)
	id := w.subscribe("Ledger", "/well/x", "PAYMENT_PAID")
	v := newVisitor(t, w.daemon.api)
	v.enter(w.daemon.consoleLink(t))
	path := "/console/subscribers/" + id
	pair := clientPair(t)
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	chain, key := pemText("CERTIFICATE", pair.Certificate[0]), pemText("PRIVATE KEY", private)
	v.submit(http.StatusBadRequest, path+"/certificate", url.Values{"chain": {chain}, "key": {"none"}})
	v.submit(http.StatusSeeOther, path+"/certificate", url.Values{"chain": {chain}, "key": {key}})
	if _, _, page := v.get(path); strings.Contains(page, "none of its own") || strings.Contains(page, "PRIVATE KEY") {
		t.Errorf("set: %s", page)
	}
	v.submit(http.StatusSeeOther, path+"/certificate/delete", url.Values{})
	v.submit(http.StatusNotFound, path+"/certificate/delete", url.Values{})
	if _, _, page := v.get(path); !strings.Contains(page, "none of its own") {
		t.Errorf("removed: %s", page)
	}
}
