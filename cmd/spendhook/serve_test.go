package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"spendhook/api/gen"
	"spendhook/internal/redistest"
)

func TestServeDelivers(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	e, deaf := newEndpoint(t, nil), newEndpoint(t, nil)
	sub := e.subscribe(t, d, "PAYMENT_PAID")
	deaf.subscribe(t, d, "CARD_CREATION_REQUEST_ERROR")

	d.cli(t, "", "event", "send", "--event", "PAYMENT_PAID", "--id", "evt_1", "--metadata", `{"amount":"1.50"}`).
		want(t, exitOK, "status  ACCEPTED", "")
	e.awaits(t, 1)

	var detail gen.DeliveryDetail
	eventually(t, patience, "the delivery is recorded", func() bool {
		status, _, body := d.do(t, http.MethodGet, "/api/v1/deliveries/evt_1."+sub.UUID.String(), "")
		return status == http.StatusOK && json.Unmarshal([]byte(body), &detail) == nil && detail.Status == "DELIVERED"
	})
	if len(detail.Attempts) != 1 || *detail.Attempts[0].StatusCode != http.StatusNoContent {
		t.Errorf("attempts: %+v", detail.Attempts)
	}
	if _, _, posts := deaf.counts(t); posts != 0 {
		t.Error("an event went to a subscriber of another type")
	}
	d.stop(t)
	if strings.Contains(d.stderr.String(), `"level":"ERROR"`) {
		t.Errorf("errors in the log:\n%s", d.stderr)
	}
}

func TestServeAnswersHealthcheckAndMetrics(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	address := strings.TrimPrefix(d.admin, "http://")
	command(t, "", "healthcheck", "--admin-listen", address).want(t, exitOK, `"ready":true`, "")
	_, metrics := get(t, d.admin+"/metrics")
	for _, name := range []string{
		`spendhook_build_info{`, `spendhook_redis_up 1`, `spendhook_events_total{result="accepted"} 0`,
		`spendhook_delivery_attempts_total{outcome="`, `spendhook_delivery_duration_seconds_bucket{`,
		`spendhook_delivery_latency_seconds_bucket{`, `spendhook_events_pending `, `spendhook_oldest_pending_seconds `,
		`spendhook_dead_letters `, `spendhook_attempts_in_flight `, `spendhook_endpoints{state="`,
		`spendhook_turns_total `, `spendhook_partitions_taken_over_total 0`, `spendhook_quarantined_total 0`, `spendhook_quarantined `, `spendhook_partitions_owned `,
		`go_goroutines `, `process_open_fds `,
	} {
		if !strings.Contains(metrics, "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}

// The token of the command line is signed with the daemon's own key.
func TestTokenCommand(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	before := command(t, "", "token", "--data-dir", h.dir, "--company", testCompany, "--scope", "events:read")
	before.want(t, exitOK, "ey", "")
	d := h.start(t)
	d.token = strings.TrimSpace(before.stdout)
	if status, _, body := d.do(t, http.MethodGet, "/api/v1/events", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	if status, _, _ := d.do(t, http.MethodPost, "/api/v1/events", "{}"); status != http.StatusForbidden {
		t.Errorf("a token without the scope: %d", status)
	}
	command(t, "", "token", "--data-dir", h.dir, "--scope", "events:destroy").want(t, exitUsage, "", "unknown scope")
}

func TestDemo(t *testing.T) {
	t.Parallel()
	h := newInstallation(t, sharedRedis(t), "")
	for range 2 { // the second run finds its subscriber again
		d := h.start(t, "--demo")
		shown := d.stdout.String()
		for pattern, n := range map[string]int{
			`(  ACCEPTED .+\n){3}(  POST 204 .+\n){3}\nTheir deliveries\n(  DELIVERED .+\n){3}\nTry it`:            1,
			`(?m)^  ACCEPTED   [A-Z_]+ +demo-\w+-[123]$`:                                                           3,
			`(?m)^  POST 204   [A-Z_]+ +demo-\w+-[123]   signature verified \(standard\)$`:                         3,
			`(?m)^  DELIVERED  [A-Z_]+ +demo-\w+-[123]   attempt 1: 204$`:                                          3,
			`(?m)^curl -sS -H "Authorization: Bearer \$TOKEN" http://127.0.0.1:\d+/api/v1/`:                        4,
			`(?m)^curl -sS -H "Authorization: Bearer \$TOKEN" http://127.0.0.1:\d+/api/v3/(cards|reimbursements)$`: 2,
		} {
			if got := len(regexp.MustCompile(pattern).FindAllString(shown, -1)); got != n {
				t.Errorf("%d times %s, want %d in:\n%s", got, pattern, n, shown)
			}
		}
		var page gen.SubscriberPage
		d.read(t, "/api/v1/subscribers", &page)
		if page.TotalElements != 1 {
			t.Errorf("%d subscribers", page.TotalElements)
		}
		d.stop(t)
	}
}

// serve with an invalid setup ends at once and prints the reason on one line.
func TestServeRefusesToStart(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := newInstallation(t, sharedRedis(t), "")
	proxied := filepath.Join(t.TempDir(), "proxied.yml")
	if err := os.WriteFile(proxied, []byte("tls: {trusted_proxies: [10.0.0.0/8]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"address in use", "intake: listen tcp " + busy.Addr().String() + ": bind: address already in use; choose another address with --listen", exitFailure, h.args("--listen", busy.Addr().String())},
		{"data directory is a file", "data directory: mkdir " + file, exitFailure, h.args("--data-dir", file)},
		{"no such configuration", "read the configuration: open /nowhere.yml", exitFailure, h.args("--config", "/nowhere.yml")},
		{"no Redis address", "redis: the address starts with none of", exitFailure, h.args("--redis", "http://user:hunter2@example.com")},
		{"open to the network", "tls: refused: there is no TLS", exitFailure, []string{"serve", "--listen", "0.0.0.0:0", "--data-dir", h.dir}},
		{"open to this machine", "tls: refused: there is no TLS", exitFailure, []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", h.dir}},
		{"no such certificate", "/nowhere.pem, /key.pem: open /nowhere.pem", exitFailure, h.args("--tls-cert", "/nowhere.pem", "--tls-key", "/key.pem")},
		{"dev open to the network", "listen: refused: dev has no protection", exitFailure, h.args("--listen", "0.0.0.0:0")},
		{"demo without dev", "--demo needs --dev", exitUsage, []string{"serve", "--demo", "--data-dir", h.dir, "--config", proxied}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := command(t, "", append(tc.args, "--log-level", "error")...)
			r.want(t, tc.code, "", "spendhook: "+tc.want)
			if strings.Count(r.stderr, "\n") != 1 || strings.Contains(r.stderr, "hunter2") {
				t.Errorf("want one line without secrets, got:\n%s", r.stderr)
			}
		})
	}
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.yml", "dev: true\nredis: redis://:hunter2@localhost:6379\n")
	command(t, "", "config", "check", good).want(t, exitOK, "the configuration is valid", "")

	bad := write("bad.yml", "lisen: x\ndelivery: {jitter: 7}\n")
	r := command(t, "", "config", "check", bad)
	r.want(t, exitFailure, "", "spendhook: lisen: ")
	r.want(t, exitFailure, "", "spendhook: delivery.jitter: ")
}

// A Redis with an evicting policy makes the daemon unready. /readyz names the reason.
func TestEvictingRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{Args: []string{"--maxmemory-policy", "allkeys-lru"}})
	d := newInstallation(t, unhurried(server.URL()), "").start(t)
	if code, body := get(t, d.admin+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "allkeys-lru") {
		t.Errorf("%d %s", code, body)
	}
}

// intake posts new events one after the other and records the accepted ones.
type intake struct {
	daemon   *running
	at       time.Time
	next     int
	accepted []string
}

func (in *intake) post(tb testing.TB) (status int, retryAfter string, took time.Duration) {
	tb.Helper()
	began := time.Now()
	status, header, _ := in.daemon.do(tb, http.MethodPost, "/api/v1/events", strings.TrimSpace(eventLines(in.next, 1, in.at)))
	if status == http.StatusAccepted {
		in.accepted = append(in.accepted, fmt.Sprintf("evt_%d", in.next))
	}
	in.next++
	return status, header.Get("Retry-After"), time.Since(began)
}

// refused checks answers and readiness while Redis is unavailable.
func (in *intake) refused(tb testing.TB) {
	tb.Helper()
	var all []time.Duration
	for range 3 {
		status, retryAfter, took := in.post(tb)
		if status != http.StatusServiceUnavailable || retryAfter == "" {
			tb.Errorf("without Redis: %d, Retry-After %q, after %v", status, retryAfter, took)
		}
		all = append(all, took)
	}
	wantInTime(tb, all)
	if code, _ := get(tb, in.daemon.admin+"/readyz"); code != http.StatusServiceUnavailable {
		tb.Errorf("ready without Redis: %d", code)
	}
}

func (in *intake) resumes(tb testing.TB) {
	tb.Helper()
	eventually(tb, patience, "events are taken again", func() bool {
		status, _, _ := in.post(tb)
		return status == http.StatusAccepted
	})
}

// Redis is killed and restarted. No event is answered 202 meanwhile, the daemon needs no
// restart, and every accepted event is delivered.
func TestRedisComesBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	d := newInstallation(t, unhurried(server.URL()), quickRetries).start(t)
	e := newEndpoint(t, nil)
	e.subscribe(t, d, "PAYMENT_PAID")
	in := &intake{daemon: d, at: time.Now()}
	for range 20 {
		if status, _, _ := in.post(t); status != http.StatusAccepted {
			t.Fatalf("with Redis: %d", status)
		}
	}
	server.Kill()
	in.refused(t)
	server.Restart()
	in.resumes(t)
	eventually(t, deliveryPatience, "what was accepted is delivered", func() bool {
		return !slices.ContainsFunc(in.accepted, func(id string) bool { return !e.has(id) })
	})
	d.stop(t)
}

// Events are refused in time while Redis keeps its connections and does not answer.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	in := &intake{daemon: newInstallation(t, server.URL(), "").start(t), at: time.Now()}
	server.Pause()
	in.refused(t)
	server.Resume()
	in.resumes(t)
}

// A daemon that is started before its Redis waits for it.
func TestServeWaitsForRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Kill()
	d := newInstallation(t, server.URL(), "").begin(t)
	eventually(t, patience, "it says why it is not ready", func() bool {
		return strings.Contains(d.stderr.String(), `"msg":"Redis has a problem"`)
	})
	server.Restart()
	d.await(t)
	if code, body := get(t, d.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
}

// No secret is in a log line, metric, list or error.
func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	const password = "correct-horse-battery"
	if err := server.Client().Do(t.Context(), "ACL", "SETUSER", "app", "on", ">"+password, "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	d := newInstallation(t, strings.Replace(server.URL(), "unix://", "unix://app:"+password+"@", 1), quickRetries).start(t)
	var fails sync.Map
	e := newEndpoint(t, func(id string) int {
		if _, again := fails.LoadOrStore(id, true); again {
			return http.StatusNoContent
		}
		return http.StatusInternalServerError
	})
	sub := e.subscribe(t, d, "PAYMENT_PAID")
	d.cli(t, eventLines(0, 5, time.Now()), "event", "send", "-f", "-").want(t, exitOK, "refused 0", "")
	e.awaits(t, 5)

	id := sub.UUID.String()
	var seen []string
	ask := func(method, path, body string) string {
		t.Helper()
		_, _, answer := d.do(t, method, path, body)
		seen = append(seen, answer)
		return answer
	}
	rotated := ask(http.MethodPost, "/api/v1/subscribers/"+id+"/rotate-secret", "")
	seen = nil // that answer is the one place for it
	secrets := append(regexp.MustCompile(`whsec_[A-Za-z0-9+/=]+`).FindAllString(rotated, -1), e.secret, d.token)
	if len(secrets) != 3 {
		t.Fatalf("%d secrets", len(secrets))
	}
	secrets = append(secrets, password)
	for _, path := range []string{
		"/api/v1/subscribers", "/api/v1/subscribers/" + id, "/api/v1/subscribers/" + id + "/stats",
		"/api/v1/events", "/api/v1/events/evt_1", "/api/v1/events/evt_1/deliveries", "/api/v1/events/evt_1/explain",
		"/api/v1/deliveries", "/api/v1/deliveries/evt_1." + id, "/api/v1/subscribers/nobody",
	} {
		ask(http.MethodGet, path, "")
	}
	ask(http.MethodPost, "/api/v1/subscribers/"+id+"/test", "")
	ask(http.MethodPost, "/api/v1/subscribers", `{"name":"`+e.secret+`","callbackUrl":"http://`+d.token+`@localhost/","events":["A"],"secret":"`+e.secret+`"}`)
	ask(http.MethodPost, "/api/v1/events", `{"id":"`+e.secret+`"}`)
	good := d.token
	d.token += "x"
	ask(http.MethodGet, "/api/v1/events?"+good, "")
	d.token = good
	_, metrics := get(t, d.admin+"/metrics")
	_, ready := get(t, d.admin+"/readyz")
	d.stop(t)

	seen = append(seen, metrics, ready, d.stderr.String())
	for i, text := range seen {
		for j, secret := range secrets {
			bare := strings.TrimPrefix(secret, "whsec_")
			if strings.Contains(text, bare) {
				t.Errorf("secret %d of %d is in text %d of %d: %.300s", j, len(secrets), i, len(seen), text[max(0, strings.Index(text, bare)-200):])
			}
		}
	}
	if !slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, `"error.type":"http_5xx"`) }) {
		t.Error("the log has no failed attempt, so its secrets were not tested")
	}
}

// Without public_url, what is delivered has links to where the daemon listens.
func TestLinksOfDeliveries(t *testing.T) {
	t.Parallel()
	d := newInstallation(t, sharedRedis(t), "").start(t)
	e := newEndpoint(t, nil)
	var sub gen.SubscriberWithSecret
	r := d.cli(t, "", "subscriber", "create", "--name", "Thin", "--callback-url", e.URL+"/hook", "--event", "PAYMENT_PAID", "--event-format", "thin", "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &sub); err != nil {
		t.Fatal(err, r)
	}
	e.setSubscriber(t, sub.UUID, sub.Secret)
	d.cli(t, "", "event", "send", "--id", "evt_1", "--event", "PAYMENT_PAID").want(t, exitOK, "ACCEPTED", "")
	e.awaits(t, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	if body := e.bodies["evt_1"]; !strings.Contains(body, `"`+d.api+`/api/v1/events/evt_1"`) {
		t.Errorf("no link to %s: %s", d.api, body)
	}
}

// A second daemon for a trial needs only another --listen.
func TestAdminListenerOfATrial(t *testing.T) {
	for listen, want := range map[string]string{"127.0.0.1:8081": "127.0.0.1:9091", "[::1]:9000": "[::1]:10010", "127.0.0.1:0": "127.0.0.1:0", "127.0.0.1:65000": "127.0.0.1:0", "": "", "8081": "", "127.0.0.1:http": ""} {
		if got := (&serveCmd{Dev: true, Listen: listen}).adminBeside(); got != want {
			t.Errorf("%s: %s, want %s", listen, got, want)
		}
	}
	for name, c := range map[string]serveCmd{"no trial": {Listen: "127.0.0.1:8081"}, "quickstart": {Quickstart: true, Listen: "127.0.0.1:8081"}, "settings": {Dev: true, Listen: "127.0.0.1:8081", configFlags: configFlags{Config: "a.yml"}}} {
		if got := c.adminBeside(); got != "" {
			t.Errorf("%s: %s", name, got)
		}
	}
	t.Setenv("SPENDHOOK_ADMIN_LISTEN", "127.0.0.1:1")
	if got := (&serveCmd{Dev: true, Listen: "127.0.0.1:8081"}).adminBeside(); got != "" {
		t.Errorf("the environment: %s", got)
	}
}
