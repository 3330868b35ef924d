package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"spendhook/api/gen"
	"spendhook/audit"
)

// An operator exports the changes by the API and by the command line.
func TestAuditExport(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	h.importData(t, spendLines(), "-").want(t, exitOK, "imported 6", "")
	d := h.start(t)
	newEndpoint(t, nil).subscribe(t, d, "PAYMENT_PAID")
	token := command(t, "", "token", "--data-dir", h.dir, "--scope", "operator platform")
	export := func(more ...string) (list []gen.AuditEntry) {
		t.Helper()
		got := command(t, "", append([]string{"audit", "export", "--url", d.api, "--token-file", secretFile(t, token.stdout)}, more...)...)
		got.want(t, exitOK, "", "")
		for line := range strings.Lines(got.stdout) {
			var e gen.AuditEntry
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			list = append(list, e)
		}
		return list
	}
	eventually(t, patience, "the entries of commands came from the data directory", func() bool { return len(export()) == 3 })
	if minted := export("--action", "token"); len(minted) != 1 || minted[0].Target.Ids[0] != "cli" || *minted[0].Detail != "operator platform for 1h0m0s" {
		t.Errorf("%+v", minted)
	}
	imported := export("--action", "spend")
	if len(imported) != 1 || imported[0].Actor.Kind != gen.AuditActorKindCli || imported[0].Actor.Subject == "" ||
		imported[0].Action != "spend.import" || imported[0].Target.Ids[0] != "-" || *imported[0].Detail != "imported 6, refused 0" {
		t.Errorf("%+v", imported)
	}
	created := export("--action", "subscriber.create", "--company-uuid", developerCompany.String(), "--from", "2026-01-01T00:00:00Z")
	if len(created) != 1 || created[0].Actor.Subject != "developer" || *created[0].Address != "127.0.0.1" {
		t.Errorf("%+v", created)
	}
	if list := export("--to", "2026-01-01T00:00:00Z"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	d.stop(t)
}

func TestAuditExportThatFails(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("action") == "cut" {
			w.Header().Set("Content-Type", "application/x-ndjson")
			_, _ = w.Write([]byte("{}\n"))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"code":"INSUFFICIENT_SCOPE","detail":"The token needs the scope operator."}`))
	}))
	t.Cleanup(server.Close)
	export := []string{"audit", "export", "--url", server.URL, "--token-file", secretFile(t, "t")}
	command(t, "", export...).want(t, exitNotAllowed, "", "403 INSUFFICIENT_SCOPE")
	command(t, "", append(export, "--action", "cut")...).want(t, exitFailure, "{}", "the export is incomplete")
	command(t, "t", "audit", "export", "--url", server.URL, "--token-file", "-", "--action", "cut").want(t, exitFailure, "{}", "the export is incomplete")
}

// Commands about clients and keys write audit entries without secrets.
func TestClientsAndKeysAreRecorded(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	run := func(args ...string) string {
		t.Helper()
		got := command(t, "", append(args, "--data-dir", dir)...)
		got.want(t, exitOK, "", "")
		return got.stdout
	}
	var made struct{ ClientID, ClientSecret string }
	if err := json.Unmarshal([]byte(run("client", "create", "--name", "n", "--scope", "events:write", "--json")), &made, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatal(err)
	}
	run("keys", "rotate")
	key := firstKey(t, run("keys", "list"))
	command(t, "", "keys", "revoke", "--data-dir", dir, "--", key).want(t, exitOK, "signing", "")
	text, err := os.ReadFile(filepath.Join(dir, "audit-pending.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for line := range strings.Lines(strings.TrimSpace(string(text))) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		actions = append(actions, e.Action)
		if strings.HasPrefix(e.Action, "client.") && e.Target.IDs[0] != made.ClientID || e.Action == "keys.revoke" && e.Target.IDs[0] != key {
			t.Errorf("%+v", e)
		}
	}
	want := "client.create keys.rotate keys.revoke"
	if got := strings.Join(actions, " "); got != want || strings.Contains(string(text), made.ClientSecret) {
		t.Errorf("%s\n%s", got, text)
	}
}

// An import is audited even while Redis is down.
func TestImportIsRecordedWithoutRedis(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	config := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(config, []byte("redis: redis://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, spendLines(), "import", "--config", config, "--data-dir", dir, "-").want(t, exitOK, "imported 6", "")
	text, err := os.ReadFile(filepath.Join(dir, "audit-pending.ndjson"))
	if err != nil || !strings.Contains(string(text), `"spend.import"`) {
		t.Errorf("%s, %v", text, err)
	}
}
