package main

import (
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"spendhook/api/gen"
	"spendhook/internal/pgtest"
)

// auth runs a command about keys or clients on the daemon's database.
func (h installation) auth(tb testing.TB, args ...string) result {
	tb.Helper()
	return command(tb, "", append(args, "--data-dir", h.dir, "--storage", h.database)...)
}

func unmarshal[T any](tb testing.TB, text string) T {
	tb.Helper()
	var into T
	if err := json.Unmarshal([]byte(text), &into); err != nil {
		tb.Fatalf("%v: %s", err, text)
	}
	return into
}

// ask sends a form to the token endpoint.
func (r *running) ask(tb testing.TB, id, secret, form string) (int, string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.api+"/oauth/token", strings.NewReader(form))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(id)+":"+url.QueryEscape(secret))))
	return exchange(tb, req)
}

// statusWith is that of a list of events with a token.
func (r *running) statusWith(tb testing.TB, token string) int {
	tb.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, r.api+"/api/v1/events", nil)
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	code, _ := exchange(tb, req)
	return code
}

func exchange(tb testing.TB, req *http.Request) (int, string) {
	tb.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// manage runs a command about OAuth clients over the API.
func (h installation) manage(tb testing.TB, d *running, args ...string) result {
	tb.Helper()
	token := secretFile(tb, strings.TrimSpace(h.auth(tb, "token", "--scope", "operator platform events:read").stdout))
	return command(tb, "", append([]string{"oauth-client", "--url", d.api, "--token-file", token}, args...)...)
}

// A client's life from the command line, on each database.
func TestClientsOnEachDatabase(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func() string{
		"sqlite": func() string { return "" }, "postgres": func() string { return pgtest.New(t) },
	} {
		url := database()
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newInstallation(t, sharedRedis(t), quickRetries)
			h.database = url
			d := h.start(t)
			made := h.auth(t, "client", "create", "--name", "ledger", "--company", developerCompany.String(), "--scope", "events:read", "--scope", "events:write cards:read", "--json")
			made.want(t, exitOK, `"clientSecret":"shs_`, "Keep the secret")
			client := unmarshal[createdClient](t, made.stdout)

			code, body := d.ask(t, client.ID, client.Secret, "scope=events:read")
			if code != http.StatusOK {
				t.Fatalf("%d %s", code, body)
			}
			token := unmarshal[gen.AccessToken](t, body).AccessToken
			eventually(t, patience, "the token is good", func() bool { return d.statusWith(t, token) == http.StatusOK })
			rotated := unmarshal[createdClient](t, h.manage(t, d, "rotate-secret", client.ID, "--overlap", "0s", "--yes", "-o", "json").stdout)
			if code, body := d.ask(t, client.ID, client.Secret, ""); code != http.StatusUnauthorized {
				t.Errorf("the old secret: %d %s", code, body)
			}
			if code, body := d.ask(t, client.ID, rotated.Secret, ""); code != http.StatusOK {
				t.Errorf("the new secret: %d %s", code, body)
			}

			h.manage(t, d, "update", client.ID, "--disabled").want(t, exitOK, "disabled", "")
			if code, body := d.ask(t, client.ID, rotated.Secret, ""); code != http.StatusUnauthorized {
				t.Errorf("disabled: %d %s", code, body)
			}
			eventually(t, patience, "its token is refused", func() bool { return d.statusWith(t, token) == http.StatusUnauthorized })
			h.manage(t, d, "update", client.ID, "--no-disabled").want(t, exitOK, "disabled", "")
			eventually(t, patience, "its token is good again", func() bool { return d.statusWith(t, token) == http.StatusOK })

			for _, secret := range []string{client.Secret, rotated.Secret} {
				for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"get", client.ID}} {
					if out := h.manage(t, d, args...); strings.Contains(out.stdout, secret) || !strings.Contains(out.stdout, "ledger") {
						t.Errorf("%v: %+v", args, out)
					}
				}
			}
			h.manage(t, d, "delete", client.ID, "--yes").want(t, exitOK, "deleted", "")
			h.manage(t, d, "get", client.ID).want(t, exitNotFound, "", "There is no such client")
			h.manage(t, d, "delete", client.ID, "--yes").want(t, exitNotFound, "", "There is no such client")
			eventually(t, patience, "its token is refused", func() bool { return d.statusWith(t, token) == http.StatusUnauthorized })

			wantRotation(t, h, d)
			_, metrics := get(t, d.admin+"/metrics")
			if !strings.Contains(metrics, `spendhook_token_requests_total{result="issued"} 2`) || !strings.Contains(metrics, "\nspendhook_token_key_age_seconds ") {
				t.Error("the metrics lack the token requests or the age of the signing key")
			}
		})
	}
}

// wantRotation rotates the keys and awaits the new one's first token.
func wantRotation(t *testing.T, h installation, d *running) {
	t.Helper()
	minted := h.auth(t, "token", "--scope", "events:read platform")
	minted.want(t, exitOK, ".", "")
	h.auth(t, "keys", "rotate").want(t, exitOK, "next", "")
	h.auth(t, "keys", "rotate").want(t, exitFailure, "", "is already published")
	h.auth(t, "keys", "list").want(t, exitOK, "next", "")
	eventually(t, patience, "the daemon publishes both keys", func() bool {
		_, jwks := get(t, d.api+"/.well-known/jwks.json")
		return strings.Count(jwks, `"kid"`) == 2
	})
	eventually(t, patience, "a token of the command line is good", func() bool {
		return d.statusWith(t, strings.TrimSpace(minted.stdout)) == http.StatusOK
	})

	leaked := firstKey(t, h.auth(t, "keys", "list").stdout)
	revoke := []string{"keys", "revoke", "--data-dir", h.dir, "--storage", h.database, "--", leaked}
	command(t, "", revoke...).want(t, exitOK, "signing", "")
	eventually(t, patience, "tokens of the revoked key are refused", func() bool {
		return d.statusWith(t, strings.TrimSpace(minted.stdout)) == http.StatusUnauthorized
	})
	command(t, "", revoke...).want(t, exitFailure, "", "no token key has this id")
	if _, jwks := get(t, d.api+"/.well-known/jwks.json"); strings.Contains(jwks, leaked) {
		t.Error("the revoked key is published")
	}
	minted = h.auth(t, "token", "--scope", "events:read platform")
	if code := d.statusWith(t, strings.TrimSpace(minted.stdout)); code != http.StatusOK {
		t.Errorf("a token of the key in its place: %d", code)
	}
}

// A client without a secret gets its token with its certificate. The token is valid only with
// that certificate.
func TestTokenByCertificate(t *testing.T) {
	t.Parallel()
	certs := newDevCerts(t)
	h := newInstallation(t, sharedRedis(t), "")
	d := h.startSecure(t, certs.serveFlags()...)
	made := h.auth(t, "client", "create", "--name", "till", "--company", testCompany, "--scope", "subscribers:read", "--no-secret", "--certificate", certs.path("client.pem"), "--json")
	made.want(t, exitOK, "shc_", "")
	if strings.Contains(made.stdout, "clientSecret") {
		t.Errorf("it has a secret: %s", made.stdout)
	}
	form := url.Values{"client_id": {unmarshal[createdClient](t, made.stdout).ID}}
	ask := func(client *http.Client) (int, string) {
		t.Helper()
		resp, err := client.PostForm(d.api+"/oauth/token", form)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	with, without := certs.client(t, certs.pair(t)), certs.client(t)
	if code, body := ask(without); code != http.StatusUnauthorized {
		t.Errorf("without the certificate: %d %s", code, body)
	}
	code, body := ask(with)
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	token := unmarshal[gen.AccessToken](t, body).AccessToken
	d.wantCode(t, with, token, "/api/v1/subscribers", http.StatusOK, "")
	d.wantCode(t, without, token, "/api/v1/event-types", http.StatusUnauthorized, "TOKEN_INVALID")

	// Its certificate is replaced.
	replace := func(args ...string) result {
		t.Helper()
		return h.manage(t, d, append([]string{"update", form.Get("client_id"), "--cacert", certs.path("ca.pem")}, args...)...)
	}
	replace("--certificate", strings.Repeat("A", 43)).want(t, exitOK, strings.Repeat("A", 43), "")
	if code, body := ask(with); code != http.StatusUnauthorized {
		t.Errorf("with the old certificate: %d %s", code, body)
	}
	replace("--certificate", strings.Repeat("A", 43), "--certificate", certs.path("client.pem")).want(t, exitOK, "AAA", "")
	if code, body := ask(with); code != http.StatusOK {
		t.Errorf("with one of two certificates: %d %s", code, body)
	}
	replace("--any-certificate").want(t, exitFailure, "", "a client without a secret needs a certificate")
	replace("--certificate", "none.pem").want(t, exitFailure, "", "none.pem")
}

func TestClientCommandsNameTheProblem(t *testing.T) {
	t.Parallel()
	h := installation{dir: dataDir(t)}
	broken := filepath.Join(h.dir, "broken.pem")
	if err := os.WriteFile(broken, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	create := []string{"client", "create", "--name", "n"}
	h.auth(t, append(create, "--scope", "events:all")...).want(t, exitFailure, "", "scopes: unknown scope")
	h.auth(t, append(create, "--scope", "platform", "--company", developerCompany.String())...).want(t, exitFailure, "", "beyond one company")
	h.auth(t, append(create, "--scope", "platform", "--certificate", broken)...).want(t, exitFailure, "", "holds no certificate (PEM)")
	h.auth(t, append(create, "--scope", "platform", "--certificate", "none.pem")...).want(t, exitFailure, "", "none.pem")
	h.auth(t, append(create, "--scope", "platform", "--no-secret")...).want(t, exitFailure, "", "certificates: a client without a secret needs a certificate")
	h.auth(t, append(create, "--scope", "platform", "--no-secret", "--certificate", strings.Repeat("A", 43))...).want(t, exitOK, "client id", "its requests may name any company")
	off := filepath.Join(h.dir, "off.yml")
	if err := os.WriteFile(off, []byte("auth: {builtin: false, issuers: [{issuer: a, audience: b, scopes: [platform], jwks_url: 'https://a.example.com'}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.auth(t, "keys", "list", "--config", off).want(t, exitFailure, "", "auth.builtin is off")
}

// firstKey returns the id of the first key that keys list has printed.
func firstKey(tb testing.TB, list string) string {
	tb.Helper()
	lines := strings.Split(list, "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "KEY ") {
		tb.Fatalf("keys list: %s", list)
	}
	return strings.Fields(lines[1])[0]
}
