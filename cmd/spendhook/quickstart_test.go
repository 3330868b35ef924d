package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// firstLook is a daemon with --quickstart, and the lines that it printed.
type firstLook struct {
	*running
	lines, client string
}

func startQuickstart(tb testing.TB, args ...string) *firstLook {
	tb.Helper()
	f := &firstLook{running: beginWith(tb, append([]string{
		"serve", "--quickstart", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json",
	}, args...))}
	eventually(tb, patience, "the lines are printed", func() bool {
		select {
		case <-f.done:
			tb.Fatalf("the daemon ended with %d:\n%s", f.code, f.stderr)
		default:
		}
		_, lines, found := strings.Cut(f.stdout.String(), "in another terminal")
		f.lines = lines
		return found && strings.Contains(lines, "# list subscribers\n") && strings.HasSuffix(lines, "\n\n")
	})
	f.api = "https://" + listeningLine.FindStringSubmatch(f.stderr.String())[1]
	f.client = regexp.MustCompile(`client_id=(\S+)`).FindStringSubmatch(f.lines)[1]
	return f
}

// follow runs the printed commands and returns their output.
func (f *firstLook) follow(tb testing.TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "sh", "-euc", f.lines).CombinedOutput()
	if err != nil {
		tb.Fatalf("%v\n%s\n%s", err, f.lines, out)
	}
	return string(out)
}

// The commands that --quickstart prints work unchanged. A second start keeps certificates and
// client, and creates missing ones again.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	dir := emptyDir(t)
	args := []string{"--data-dir", dir, "--redis", sharedRedis(t)}
	first := startQuickstart(t, args...)
	if out := first.follow(t); !strings.Contains(out, `"status":"ACCEPTED"`) || !strings.Contains(out, `"totalElements":`) {
		t.Errorf("the lines answered %s\nthe daemon printed %s\n%s", out, first.stdout, first.stderr)
	}
	first.stop(t)
	authority, err := os.ReadFile(filepath.Join(dir, "quickstart", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}

	second := startQuickstart(t, args...)
	if again, err := os.ReadFile(filepath.Join(dir, "quickstart", "ca.pem")); err != nil || string(again) != string(authority) {
		t.Errorf("the second start has another authority (%v)", err)
	}
	second.follow(t)
	second.stop(t)

	if err := os.Remove(filepath.Join(dir, "quickstart", "client-key.pem")); err != nil {
		t.Fatal(err)
	}
	third := startQuickstart(t, args...)
	third.follow(t)
	certs := devCerts{filepath.Join(dir, "quickstart")}
	third.http = certs.client(t, certs.pair(t))
	token := command(t, "", "token", "--data-dir", dir, "--scope", "operator platform")
	token.want(t, exitOK, "ey", "")
	third.token = strings.TrimSpace(token.stdout)
	if _, _, body := third.do(t, http.MethodGet, "/api/v1/audit", ""); strings.Count(body, `"client.create"`) != 1 {
		t.Errorf("the audit log has not one new client: %s", body)
	}
	_, _, clients := third.do(t, http.MethodGet, "/api/v1/oauth-clients", "")
	if strings.Count(clients, `"clientId"`) != 1 || !strings.Contains(clients, first.client) {
		t.Errorf("want one client: %s", clients)
	}
	third.stop(t)
	if second.client != first.client || third.client != first.client {
		t.Errorf("clients %s, %s and %s, want one", first.client, second.client, third.client)
	}
}

// Without a redis-server, as in an image, a first look is in memory and says so.
func TestQuickstartInMemory(t *testing.T) {
	path := os.Getenv("PATH")
	t.Setenv("PATH", t.TempDir())
	f := startQuickstart(t, "--data-dir", emptyDir(t))
	if !strings.Contains(f.stdout.String(), "nothing survives a restart") {
		t.Errorf("no warning about the in-memory Redis:\n%s", f.stdout)
	}
	t.Setenv("PATH", path)
	if out := f.follow(t); !strings.Contains(out, `"status":"ACCEPTED"`) {
		t.Error(out)
	}
	f.stop(t)
}

func TestQuickstartRefusesMixtures(t *testing.T) {
	t.Parallel()
	dir := emptyDir(t)
	settingsFile := func(text string) string {
		path := filepath.Join(t.TempDir(), "settings.yml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, args := range map[string][]string{
		"--dev":               {"--dev"},
		"tls.cert_file":       {"--tls-cert", "server.pem", "--tls-key", "key.pem"},
		"tls.client_ca_file":  {"--tls-cert", "server.pem", "--tls-key", "key.pem", "--client-ca", "ca.pem"},
		"tls.trusted_proxies": {"--config", settingsFile("tls: {trusted_proxies: [10.0.0.0/8]}\n")},
		"auth.builtin":        {"--config", settingsFile("auth: {builtin: false, issuers: [{issuer: 'https://login.example.com/', jwks_url: 'https://login.example.com/keys', audience: a, scopes: ['events:write']}]}\n")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			command(t, "", append([]string{"serve", "--quickstart", "--data-dir", dir}, args...)...).want(t, exitUsage, "", name)
		})
	}
}

// stopAtListening ends a daemon as soon as its log says that it listens.
type stopAtListening struct {
	lockedBuffer

	stop func()
}

func (w *stopAtListening) Write(p []byte) (int, error) {
	if strings.Contains(string(p), `"msg":"listening"`) {
		w.stop()
	}
	return w.lockedBuffer.Write(p)
}

// A signal that comes before the first client is made ends the daemon as any other does.
func TestQuickstartIsStoppedAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &stopAtListening{stop: cancel}
	args := []string{"serve", "--quickstart", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-format", "json", "--data-dir", emptyDir(t), "--redis", sharedRedis(t)}
	if code := run(ctx, args, &lockedBuffer{}, log); code != exitOK || !strings.Contains(log.String(), `"msg":"shut down"`) {
		t.Errorf("exit code %d:\n%s", code, log)
	}
}
