package main

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/internal/devca"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
	"spendhook/subscribers/certificate"
)

// found runs the doctor and returns the worst finding of each check.
func found(tb testing.TB, code int, args ...string) map[string]finding {
	tb.Helper()
	if code == exitOK {
		args = append(args, "--timeout", patience.String()) // on a busy machine
	}
	r := command(tb, "", append([]string{"doctor", "--json"}, args...)...)
	var out struct {
		Findings []finding `json:"findings"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || r.code != code {
		tb.Fatalf("exit code %d, %v:\n%s%s", r.code, err, r.stdout, r.stderr)
	}
	worse := map[string]int{findingOK: 0, findingWarning: 1, findingProblem: 2}
	worst := map[string]finding{}
	for _, f := range out.Findings {
		if old, ok := worst[f.Check]; !ok || worse[f.Result] > worse[old.Result] {
			worst[f.Check] = f
		}
		if f.Message == "" || (f.Remedy == "") != (f.Result == findingOK) {
			tb.Errorf("%+v: want what is wrong, and what to do", f)
		}
	}
	return worst
}

// wantFound checks the worst finding of each check. Where ok is wanted, a slow answer of a server is
// ok, too.
func wantFound(tb testing.TB, got map[string]finding, want map[string]string) {
	tb.Helper()
	for check, result := range want {
		slow := result == findingOK && strings.Contains(got[check].Message, "answers within") // on a busy machine
		if got[check].Result != result && !slow {
			tb.Errorf("%s: %+v, want %s", check, got[check], result)
		}
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always", "--maxmemory", "100mb"}})
	h := newInstallation(t, unhurried(server.URL()), "")
	file := filepath.Join(h.dir, "config.yml")
	h.settings(t, "dev: true\nredis: "+server.URL()+"?read_timeout=20s\n") // on a busy machine
	args := []string{"--config", file, "--data-dir", h.dir}
	wantFound(t, found(t, exitOK, args...), map[string]string{"Redis": findingOK, "replicas": findingWarning}) // no daemon
	d := h.start(t)
	wantFound(t, found(t, exitOK, args...), map[string]string{
		"configuration": findingOK, "data directory": findingOK, "encryption key files": findingOK, "encryption keys": findingOK,
		"certificates": findingOK, "spend database": findingOK, "Redis": findingOK, "Redis servers": findingOK, "Redis memory": findingOK,
		"work": findingOK, "egress certificates": findingOK, "signing keys": findingOK, "callback URLs": findingOK, "replicas": findingOK,
	})
	command(t, "", append([]string{"doctor", "--timeout", patience.String()}, args...)...).want(t, exitOK, "ok    configuration: the settings are valid\n", "")
	d.stop(t)
	challenging := subscribers.NewStore(subscribers.StoreOptions{Client: server.Client(), Keyring: ringOf(t, strings.TrimSpace(readText(t, filepath.Join(h.dir, encryptionKeyFile)))), Challenge: subscribers.ChallengeNew})
	asked, err := challenging.Create(t.Context(), developerCompany, subscribers.Settings{
		Name: new("n"), CallbackURL: new("https://hooks.example.com/"), Events: new([]string{"A"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if waits := found(t, exitOK, args...)["callback URLs"]; waits.Result != findingWarning || !strings.Contains(waits.Message, "1 subscribers are not verified") {
		t.Errorf("a subscriber that is not verified: %+v", waits)
	}
	verified := subscribers.Verification{State: subscribers.StateVerified}
	if _, err := challenging.NoteChallenge(t.Context(), &asked, verified); err != nil {
		t.Fatal(err)
	}
	wantFound(t, found(t, exitOK, args...), map[string]string{"callback URLs": findingOK})
	certificates := certificate.New(certificate.Options{Client: server.Client(), Keyring: ringOf(t, otherKey)})
	if _, err := certificates.Set(t.Context(), developerCompany, clientInput(t)); err != nil { // it ends within the hour
		t.Fatal(err)
	}
	ending := found(t, exitOK, args...)["egress certificates"]
	if ending.Result != findingWarning || !strings.Contains(ending.Message, developerCompany.String()) {
		t.Errorf("a certificate that ends: %+v", ending)
	}
	elsewhere := subscribers.NewStore(subscribers.StoreOptions{Client: server.Client(), Keyring: ringOf(t, otherKey)})
	_, err = elsewhere.Create(t.Context(), uuid.New(), subscribers.Settings{
		Name: new("n"), CallbackURL: new("https://hooks.example.com/"), Events: new([]string{"A"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantFound(t, found(t, exitFailure, args...), map[string]string{"signing keys": findingProblem})

	now := time.Now()
	ca, err := devca.New("test", now.Add(-2*time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	old, err := ca.Issue(devca.Leaf{Name: "old", Hosts: []string{"h"}, Usage: x509.ExtKeyUsageServerAuth, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(-time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	certificate, key := filepath.Join(h.dir, "old.pem"), filepath.Join(h.dir, "old.key")
	for path, text := range map[string][]byte{certificate: old.Cert, key: old.Key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.settings(t, "dev: true\nredis: redis://127.0.0.1:1\nstorage: {url: 'postgres://u:hunter2@127.0.0.1:1/d'}\n"+
		"tls: {cert_file: "+certificate+", key_file: "+key+"}\negress: {proxy_url: 'http://127.0.0.1:1'}\n")
	wantFound(t, found(t, exitFailure, args...), map[string]string{
		"Redis": findingProblem, "spend database": findingProblem, "certificates": findingProblem, "egress": findingProblem,
	})
	h.settings(t, "redis: "+server.URL()+"\nlog: {level: loud}\n")
	wantFound(t, found(t, exitFailure, args...), map[string]string{"configuration": findingProblem})

	evicting := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}})
	h.settings(t, "dev: true\nredis: "+unhurried(evicting.URL())+"\nencryption: {key: '"+otherKey+"'}\n")
	wantFound(t, found(t, exitFailure, args...), map[string]string{"Redis": findingProblem, "replicas": findingWarning})
	h.settings(t, "dev: true\nredis: "+unhurried(server.URL())+"\nencryption: {key: '"+otherKey+"'}\n")
	wantFound(t, found(t, exitFailure, args...), map[string]string{"encryption keys": findingProblem})
}

// While a shard of a Cluster is unavailable, doctor names it.
func TestDoctorNamesTheShardThatIsDown(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3, "--cluster-require-full-coverage", "no", "--maxmemory", "100mb")
	h := newInstallation(t, clusterURL(servers), "")
	file := filepath.Join(h.dir, "config.yml")
	h.settings(t, "dev: true\nredis: "+clusterURL(servers)+"\n")
	h.start(t).stop(t)
	down := servers[(shardOf(t, servers, "sh:keys")+1)%len(servers)]
	down.Pause()
	defer down.Resume()
	var got map[string]finding
	eventually(t, patience, "doctor names the server that is down", func() bool { // a busy machine may delay another one's answer
		got = found(t, exitFailure, "--config", file, "--data-dir", h.dir)
		return strings.HasPrefix(got["Redis"].Message, down.Addr()+": ")
	})
	wantFound(t, got, map[string]string{"Redis": findingProblem, "spend database": findingOK})
}

// otherKey is another key than that of the data directory.
const otherKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
