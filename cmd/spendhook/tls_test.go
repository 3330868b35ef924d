package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/auth"
	"spendhook/internal/clientcert"
	"spendhook/internal/devca"
)

const everyScope = "subscribers:read subscribers:write events:read events:write reimbursements:read cards:read"

// startSecure runs a daemon as it is deployed, without --dev, until it listens,
// and gives it a token of the test's company.
func (h installation) startSecure(tb testing.TB, more ...string) *running {
	tb.Helper()
	r := beginWith(tb, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-level", "debug",
		"--redis", h.redis, "--data-dir", h.dir, "--config", filepath.Join(h.dir, "config.yml"),
	}, more...))
	var addresses []string
	eventually(tb, patience, "the daemon listens", func() bool {
		select {
		case <-r.done:
			tb.Fatalf("the daemon ended with %d:\n%s", r.code, r.stderr)
		default:
		}
		addresses = listeningLine.FindStringSubmatch(r.stderr.String())
		return addresses != nil
	})
	r.api, r.admin = "http://"+addresses[1], "http://"+addresses[2]
	if len(more) > 0 {
		r.api = "https://" + addresses[1]
	}
	token := command(tb, "", "token", "--data-dir", h.dir, "--company", testCompany, "--scope", everyScope)
	token.want(tb, exitOK, "ey", "")
	r.token = strings.TrimSpace(token.stdout)
	return r
}

// devCerts are the files of 'spendhook certs dev'.
type devCerts struct{ dir string }

func newDevCerts(tb testing.TB) devCerts {
	tb.Helper()
	c := devCerts{filepath.Join(tb.TempDir(), "certs")}
	command(tb, "", "certs", "dev", "--dir", c.dir).want(tb, exitOK, "--tls-cert "+c.path("server.pem"), "")
	return c
}

func (c devCerts) path(name string) string { return filepath.Join(c.dir, name) }

func (c devCerts) serveFlags() []string {
	return []string{"--tls-cert", c.path("server.pem"), "--tls-key", c.path("server-key.pem"), "--client-ca", c.path("ca.pem")}
}

func (c devCerts) clientFlags() []string {
	return []string{"--cacert", c.path("ca.pem"), "--cert", c.path("client.pem"), "--key", c.path("client-key.pem")}
}

// client trusts the CA, and presents a certificate if one is given.
func (c devCerts) client(tb testing.TB, cert ...tls.Certificate) *http.Client {
	tb.Helper()
	text, err := os.ReadFile(c.path("ca.pem"))
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		tb.Fatal("no authority", err)
	}
	return httpClient(tb, &tls.Config{RootCAs: pool, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(cert) == 0 {
			return &tls.Certificate{}, nil
		}
		return &cert[0], nil // also when the server would not ask for it
	}})
}

func httpClient(tb testing.TB, config *tls.Config) *http.Client {
	tb.Helper()
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func (c devCerts) pair(tb testing.TB) tls.Certificate {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.path("client.pem"), c.path("client-key.pem"))
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// wantCode asks with a client and checks the status, and the code of a problem.
func (r *running) wantCode(tb testing.TB, client *http.Client, token, path string, status int, code string) {
	tb.Helper()
	as := *r
	as.http, as.token = client, token
	got, _, body := as.do(tb, http.MethodGet, path, "")
	if got != status || !strings.Contains(body, code) {
		tb.Errorf("%s: %d %s, want %d %s", path, got, body, status, code)
	}
}

// TestMutualTLS is the daemon as it is deployed, with the files that certs dev
// makes and the flags that it prints.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	certs, other := newDevCerts(t), newDevCerts(t)
	h := newInstallation(t, sharedRedis(t), "")
	d := h.startSecure(t, certs.serveFlags()...)
	mine := certs.pair(t)
	with, without := certs.client(t, mine), certs.client(t)

	for _, path := range []string{"/api/v1/subscribers", "/api/v3/reimbursements"} {
		d.wantCode(t, with, d.token, path, http.StatusOK, "")
		d.wantCode(t, without, d.token, path, http.StatusForbidden, "CLIENT_CERTIFICATE_REQUIRED")
		d.wantCode(t, with, "garbage", path, http.StatusUnauthorized, "TOKEN_INVALID")
	}
	d.wantCode(t, without, d.token, "/api/v1/events", http.StatusOK, "")

	store, keys, err := configFlags{DataDir: h.dir}.openTokenKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	company := uuid.MustParse(testCompany)
	mint := func(cert *x509.Certificate) string {
		t.Helper()
		token, err := auth.Mint(keys, auth.Grant{
			Subject: "test", Company: &company, Scopes: strings.Fields(everyScope), TTL: time.Hour, Thumbprint: clientcert.Thumbprint(cert),
		}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	bound, foreign := mint(mine.Leaf), mint(other.pair(t).Leaf)
	d.wantCode(t, with, bound, "/api/v1/events", http.StatusOK, "")
	d.wantCode(t, without, bound, "/api/v1/events", http.StatusUnauthorized, "TOKEN_INVALID")
	d.wantCode(t, with, foreign, "/api/v1/subscribers", http.StatusUnauthorized, "TOKEN_INVALID")

	if resp, err := certs.client(t, other.pair(t)).Get(d.api + "/openapi.json"); err == nil {
		resp.Body.Close()
		t.Error("a client with a certificate of another CA was accepted")
	}
	spoofed, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, d.api+"/api/v1/subscribers", http.NoBody)
	spoofed.Header.Set("Authorization", "Bearer "+d.token)
	spoofed.Header.Set("Client-Cert", ":"+base64.StdEncoding.EncodeToString(mine.Leaf.Raw)+":")
	resp, err := without.Do(spoofed)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden || resp.ProtoMajor != 2 {
		t.Errorf("a spoofed header: %d by %s", resp.StatusCode, resp.Proto)
	}
	if status, _ := get(t, strings.Replace(d.api, "https://", "http://", 1)+"/openapi.json"); status != http.StatusBadRequest {
		t.Errorf("in clear: %d", status)
	}

	emit := append([]string{"event", "send", "--url", d.api, "--token-file", secretFile(t, d.token), "--event", "PAYMENT_PAID", "--retry-for", "5m"}, certs.clientFlags()...)
	command(t, "", emit...).want(t, exitOK, "ACCEPTED", "")
	command(t, "", emit[:len(emit)-6]...).want(t, exitFailure, "", "is not trusted: give its CA with --cacert")
	command(t, "", emit[:len(emit)-2]...).want(t, exitUsage, "", "--cert and --key go together")
	command(t, "", "healthcheck", "--admin-listen", strings.TrimPrefix(d.admin, "http://")).want(t, exitOK, `"ready":true`, "")
	with.CloseIdleConnections()
	without.CloseIdleConnections()
	d.stop(t)
}

// TestTrustedProxy: over plain HTTP, only a trusted proxy may forward a client's certificate.
func TestTrustedProxy(t *testing.T) {
	t.Parallel()
	certs := newDevCerts(t)
	d := newInstallation(t, sharedRedis(t), "tls: {trusted_proxies: [127.0.0.2/32], client_ca_file: "+certs.path("ca.pem")+"}\n").startSecure(t)
	ask := func(from string, cert *x509.Certificate) int {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		transport := &http.Transport{DialContext: dialer.DialContext}
		defer transport.CloseIdleConnections()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, d.api+"/api/v1/subscribers", http.NoBody)
		req.Header.Set("Authorization", "Bearer "+d.token)
		if cert != nil {
			req.Header.Set("Client-Cert", ":"+base64.StdEncoding.EncodeToString(cert.Raw)+":")
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	mine, foreign := certs.pair(t).Leaf, newDevCerts(t).pair(t).Leaf
	for _, tc := range []struct {
		from string
		cert *x509.Certificate
		want int
	}{
		{"127.0.0.2", mine, http.StatusOK},
		{"127.0.0.2", nil, http.StatusForbidden},
		{"127.0.0.2", foreign, http.StatusForbidden},
		{"127.0.0.1", mine, http.StatusForbidden},
		{"127.0.0.3", mine, http.StatusForbidden},
	} {
		if got := ask(tc.from, tc.cert); got != tc.want {
			t.Errorf("from %s, a certificate: %v: %d, want %d", tc.from, tc.cert != nil, got, tc.want)
		}
	}
}

// TestCertificateReplacedUnderLoad: clients ask without a pause, half of them on connections of their own. None
// of the requests fails, and the new certificate is served after some seconds.
func TestCertificateReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	ca, err := devca.New("test CA", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	install := func(name string) {
		t.Helper()
		pair, err := ca.Issue(devca.Leaf{
			Name: name, Hosts: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		})
		for file, text := range map[string][]byte{"cert.pem": pair.Cert, "key.pem": pair.Key, "ca.pem": ca.PEM()} {
			temp := filepath.Join(dir, file+".new")
			err = errors.Join(err, os.WriteFile(temp, text, 0o600), os.Rename(temp, filepath.Join(dir, file)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	install("old")
	d := newInstallation(t, sharedRedis(t), "limits: {client_rate: 0, company_rate: 0}\n").startSecure(t,
		"--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem"), "--client-ca", filepath.Join(dir, "ca.pem"))

	kept := httpClient(t, &tls.Config{RootCAs: ca.Pool()})
	fresh := httpClient(t, &tls.Config{RootCAs: ca.Pool()})
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	var failed, answered, renewed atomic.Int64
	ask := func(client *http.Client) {
		req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, d.api+"/api/v1/event-types", http.NoBody)
		req.Header.Set("Authorization", "Bearer "+d.token)
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			failed.Add(1)
			return
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%d, %v", resp.StatusCode, err)
			failed.Add(1)
		}
		answered.Add(1)
		if client == fresh && resp.TLS.PeerCertificates[0].Subject.CommonName == "new" {
			renewed.Add(1)
		}
	}
	const enough = 25 // answers with each certificate
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var group sync.WaitGroup
	for _, client := range []*http.Client{kept, fresh, kept, fresh} { // at once; each asks again when it has its answer
		group.Go(func() {
			for ctx.Err() == nil && renewed.Load() < enough {
				ask(client)
			}
		})
	}
	eventually(t, patience, "the old certificate is in use", func() bool { return answered.Load() >= enough })
	replaced := time.Now()
	install("new")
	group.Wait()
	took := time.Since(replaced)
	if failed.Load() > 0 || renewed.Load() < enough {
		t.Errorf("%d of %d requests failed, %d saw the new certificate", failed.Load(), answered.Load(), renewed.Load())
	}
	if !strings.Contains(d.stderr.String(), "new TLS files are in use") {
		t.Error("the reload is not logged")
	}
	t.Logf("%d requests, none failed; the new certificate was in use %v after it was installed", answered.Load(), took)
	kept.CloseIdleConnections()
	d.stop(t)
}

func TestCertsDev(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	first := command(t, "", "certs", "dev", "--dir", dir, "--host", "::1", "--host", "example.test")
	first.want(t, exitOK, "https://[::1]:8443/", "")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 5 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v", entry.Name(), info.Mode(), err)
		}
	}
	server, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil || server.Leaf.VerifyHostname("example.test") != nil || server.Leaf.VerifyHostname("localhost") == nil {
		t.Errorf("the server's certificate: %v", err)
	}
	before, _ := os.ReadFile(filepath.Join(dir, "client.pem"))
	command(t, "", "certs", "dev", "--dir", dir).want(t, exitFailure, "", "is not empty")
	if after, _ := os.ReadFile(filepath.Join(dir, "client.pem")); string(after) != string(before) {
		t.Error("a refused run overwrote a file")
	}
	command(t, "", "certs", "dev", "--dir", dir, "--host", "").want(t, exitUsage, "", "--host")
}
