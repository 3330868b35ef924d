package main

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/devca"
)

// settings replaces the configuration file of an installation.
func (h installation) settings(tb testing.TB, text string) {
	tb.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "config.yml"), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func (r *running) reload(tb testing.TB) (int, string) {
	tb.Helper()
	req, _ := http.NewRequestWithContext(tb.Context(), http.MethodPost, r.admin+"/-/reload", http.NoBody)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(body))
}

// SIGHUP and POST /-/reload reload the settings. Settings that can change are applied, others
// are named. Invalid settings change nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.startChild(t)
	h.settings(t, "limits: {company_rate: 1, company_burst: 2}\nsubscribers: {max_per_company: 3}\n")
	d.signal(syscall.SIGHUP)
	eventually(t, patience, "the settings are reloaded", func() bool { return strings.Contains(d.stderr.String(), "settings reloaded") })
	if code, body := d.reload(t); code != http.StatusOK || body != `{"applied":[],"needsRestart":["subscribers.max_per_company"]}` {
		t.Errorf("again: %d %s", code, body)
	}
	throttled := 0
	for range 4 {
		if code, _, _ := d.do(t, http.MethodGet, "/api/v1/event-types", ""); code == http.StatusTooManyRequests {
			throttled++
		}
	}
	if throttled == 0 {
		t.Error("the new rate limits nothing")
	}
	h.settings(t, "limits: {company_rate: -1}\naudit: {max_entries: 1}\n")
	if code, body := d.reload(t); code != http.StatusUnprocessableEntity || !strings.Contains(body, "audit.max_entries") || !strings.Contains(body, "limits.company") {
		t.Errorf("bad settings: %d %s", code, body)
	}
	h.settings(t, "egress: {allow_cidrs: [10.0.0.0/8]}\n")
	want := `{"applied":["egress.allow_cidrs","limits.company_burst","limits.company_rate"],"needsRestart":[]}`
	if code, body := d.reload(t); code != http.StatusOK || body != want {
		t.Errorf("mended: %d %s", code, body)
	}
	token := command(t, "", "token", "--data-dir", h.dir, "--scope", "operator platform")
	got := command(t, "", "audit", "export", "--url", d.api, "--token-file", secretFile(t, token.stdout), "--action", "settings")
	who, _ := systemUser()
	for _, want := range []string{
		`"actor":{"kind":"cli","subject":"` + who.Subject + `"`, `"fields":["limits.company_burst","limits.company_rate"]`,
		`"actor":{"kind":"admin","subject":"-"}`, `"fields":["egress.allow_cidrs","limits.company_burst","limits.company_rate"]`,
	} {
		got.want(t, exitOK, want, "")
	}
	if n := strings.Count(got.stdout, `"settings.reload"`); n != 3 { // refused settings change nothing
		t.Errorf("%d entries: %s", n, got.stdout)
	}
	eventually(t, patience, "requests pass with the old rate again", func() bool {
		code, _, _ := d.do(t, http.MethodGet, "/api/v1/event-types", "")
		return code == http.StatusOK
	})
}

// A reload publishes other addresses of deliveries at once.
func TestReloadOfEgressAddresses(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	d := h.start(t)
	const path = "/.well-known/egress-addresses.json"
	if code, body := get(t, d.api+path); code != http.StatusNotFound || !strings.Contains(body, "NO_EGRESS_ADDRESSES") {
		t.Errorf("without the setting: %d %s", code, body)
	}
	h.settings(t, "egress: {addresses: [{cidr: 93.184.216.34}, {cidr: 10.0.0.0/8}, {cidr: 93.184.216.33, valid_until: '2026-01-01T00:00:00Z'}]}\n")
	if code, body := d.reload(t); code != http.StatusOK || body != `{"applied":["egress.addresses"],"needsRestart":[]}` {
		t.Errorf("reload: %d %s", code, body)
	}
	if code, body := get(t, d.api+path); code != http.StatusOK || body != `{"addresses":[{"cidr":"93.184.216.34/32"},{"cidr":"10.0.0.0/8"}]}` {
		t.Errorf("after the reload: %d %s", code, body)
	}
	if log := d.stderr.String(); strings.Count(log, "has a range that is not public") != 1 || !strings.Contains(log, `"range":"10.0.0.0/8"`) {
		t.Errorf("no warning of the private range, or too many, in the log:\n%s", log)
	}
	if _, metrics := get(t, d.admin+"/metrics"); !strings.Contains(metrics, `spendhook_egress_addresses{state="announced"} 0`) || !strings.Contains(metrics, `spendhook_egress_addresses{state="valid"} 2`) {
		t.Error("the metric does not count two valid ranges")
	}
	h.settings(t, "egress: {addresses: [{cidr: 10.0.0.1/8}]}\n")
	if code, body := d.reload(t); code != http.StatusUnprocessableEntity || !strings.Contains(body, "egress.addresses[0].cidr") {
		t.Errorf("a bad range: %d %s", code, body)
	}
	if code, _, body := d.do(t, http.MethodGet, "/api/v1/egress-addresses", ""); code != http.StatusOK || !strings.Contains(body, "93.184.216.34/32") {
		t.Errorf("after a refused reload: %d %s", code, body)
	}
	d.stop(t)
}

// A public admin listener has TLS and passwords by a web configuration file, and only
// then profiles and reloads.
func TestPublicAdminListener(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "admin_public: true\n")
	open := h.start(t)
	for _, path := range []string{"/debug/pprof/", "/-/reload"} {
		if code, _ := get(t, open.admin+path); code != http.StatusNotFound {
			t.Errorf("%s of an open listener: %d", path, code)
		}
	}
	open.stop(t)

	now := time.Now()
	ca, err := devca.New("test", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(devca.Leaf{Name: "admin", Hosts: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth, NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) string {
		path := filepath.Join(h.dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("web.yml", []byte("tls_server_config: {cert_file: "+write("admin.pem", pair.Cert)+", key_file: "+write("admin.key", pair.Key)+"}\n"+
		"basic_auth_users: {prometheus: $2a$04$URWJ1238eDzclQiPgJDdsu3gU5A8yV.0o3ny3MMY4J5uKJfXYyR8m}\n"))
	h.settings(t, "admin_public: true\nadmin_web_config_file: "+file+"\n")
	d := h.begin(t)
	d.await(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}}}
	t.Cleanup(client.CloseIdleConnections)
	address := strings.Replace(d.admin, "http://", "https://", 1)
	for path, method := range map[string]string{"/metrics": http.MethodGet, "/healthz": http.MethodGet, "/-/reload": http.MethodPost} {
		for password, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, "test": http.StatusOK} {
			req, _ := http.NewRequestWithContext(t.Context(), method, address+path, http.NoBody)
			if password != "" {
				req.SetBasicAuth("prometheus", password)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s with the password %q: %d, want %d", path, password, resp.StatusCode, want)
			}
		}
	}
	check := func(ca string, more ...string) result {
		return command(t, "", append([]string{"healthcheck", "--admin-listen", strings.TrimPrefix(address, "https://"), "--cacert", ca, "--timeout", "1m"}, more...)...)
	}
	trusted, password := write("ca.pem", ca.PEM()), secretFile(t, "test")
	check(trusted, "--user", "prometheus", "--password-file", password).want(t, exitOK, `"ready":true`, "")
	check(trusted).want(t, exitFailure, "", "needs a password")
	another, err := devca.New("another", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	check(write("another.pem", another.PEM()), "--user", "prometheus", "--password-file", password).want(t, exitFailure, "", "certificate")
	d.stop(t)
	h.settings(t, "admin_public: true\nadmin_web_config_file: "+write("bad.yml", []byte("nonsense: 1\n"))+"\n")
	r := h.begin(t)
	<-r.done
	if r.code == exitOK || !strings.Contains(r.stderr.String(), "admin_web_config_file") {
		t.Errorf("a bad web configuration: exit code %d, %s", r.code, r.stderr)
	}
}
