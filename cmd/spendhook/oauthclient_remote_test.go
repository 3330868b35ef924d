package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/api/gen"
)

// An operator manages OAuth clients over the API.
func TestOAuthClientsOverTheAPI(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	token := secretFile(t, strings.TrimSpace(command(t, "", "token", "--data-dir", h.dir, "--scope", "operator platform events:read").stdout))
	do := func(args ...string) result {
		t.Helper()
		return h.manage(t, d, args...)
	}
	company := uuid.NewString()
	do("create", "--name", "till", "--scope", "events:read", "--dry-run").want(t, exitOK, "POST "+d.api+"/api/v1/oauth-clients", "")
	r := do("create", "--name", "till", "--for-company", company, "--scope", "events:read", "-o", "json")
	r.want(t, exitOK, company, "")
	made := unmarshal[gen.OAuthClientWithSecret](t, r.stdout)
	do("create", "--name", "thief", "--scope", "cards:write").want(t, exitNotAllowed, "", "does not carry all of these scopes")
	do("list", "-o", "name").want(t, exitOK, made.ClientID, "")
	do("get", made.ClientID).want(t, exitOK, "till", "")
	if status, body := d.ask(t, made.ClientID, made.ClientSecret, "grant_type=client_credentials"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	do("rotate-secret", made.ClientID, "--overlap", "0s").want(t, exitUsage, "", "Add --yes")
	r = do("rotate-secret", made.ClientID, "--overlap", "0s", "--yes", "-o", "json")
	r.want(t, exitOK, "", "")
	if status, _ := d.ask(t, made.ClientID, made.ClientSecret, "grant_type=client_credentials"); status != 401 {
		t.Errorf("the old secret is answered %d", status)
	}
	do("update", made.ClientID).want(t, exitUsage, "", "is needed")
	do("update", made.ClientID, "--disabled").want(t, exitOK, "disabled      true", "")
	do("update", made.ClientID, "--no-disabled", "--certificate", strings.Repeat("A", 43)).want(t, exitOK, "AAAA", "")
	do("update", made.ClientID, "--any-certificate").want(t, exitOK, "certificates", "")
	if out := do("get", made.ClientID).stdout; strings.Contains(out, "AAAA") {
		t.Errorf("it has a certificate: %s", out)
	}
	do("delete", made.ClientID, "--yes").want(t, exitOK, "deleted", "")
	do("get", made.ClientID).want(t, exitNotFound, "", "There is no such client")
	eventually(t, 10*time.Second, "all is in the audit log", func() bool {
		out := command(t, "", "audit", "list", "--url", d.api, "--token-file", token, "-o", "json").stdout
		return strings.Contains(out, "client.create") && strings.Contains(out, "client.update") &&
			strings.Contains(out, "client.rotate-secret") && strings.Contains(out, "client.delete")
	})
}
