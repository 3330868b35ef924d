package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/api/gen"
	"spendhook/internal/datadir"
	"spendhook/internal/redistest"
	"spendhook/internal/seal"
	"spendhook/storage"
)

// patience is the time-out for steps that are fast on an idle machine.
const patience = 5 * time.Minute

// deliveryPatience is for the delivery of thousands of events.
const deliveryPatience = 8 * time.Minute

// installation is a daemon's directory and configuration. The daemon may be started there
// repeatedly.
type installation struct {
	dir, redis string
	database   string // a URL, "" for SQLite
	binary     string // what a process runs, "" for this test's own build

	environment []string // of a process, besides the test's own
}

// quickRetries is a schedule for tests: many attempts, close together.
const quickRetries = `
delivery:
  schedule: [100ms, 200ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms, 300ms]
`

// briefRetries is a short schedule: deliveries that always fail are soon dead.
const briefRetries = `
delivery:
  schedule: [100ms, 100ms, 100ms, 100ms, 100ms]
`

// sharedKey is the encryption key that replicas on one Redis must share.
const sharedKey = "encryption: {key: 'YSBrZXkgZm9yIHRlc3RzIG9mIHR3byByZXBsaWNhcyE='}\n"

func newInstallation(tb testing.TB, redisURL, settings string) installation {
	tb.Helper()
	h := installation{dir: dataDir(tb), redis: redisURL}
	if err := os.WriteFile(filepath.Join(h.dir, "config.yml"), []byte(settings), 0o600); err != nil {
		tb.Fatal(err)
	}
	return h
}

// emptyDir is a data directory that no daemon has used.
func emptyDir(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "data")
	if err := datadir.Make(dir); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// dataDir returns a data directory with an encryption key and an empty database.
func dataDir(tb testing.TB) string {
	tb.Helper()
	dir := emptyDir(tb)
	prepare(tb, dir)
	return dir
}

// prepare makes the key and an empty database.
func prepare(tb testing.TB, dir string) {
	tb.Helper()
	_, err := seal.OpenFile(filepath.Join(dir, encryptionKeyFile))
	if err == nil {
		var db *storage.DB
		if db, err = storage.Open(storage.Options{DataDir: dir}); err == nil {
			err = db.Close()
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// unhurried lets a daemon wait for a Redis that answers late, because the machine is busy.
func unhurried(redisURL string) string { return redisURL + "?read_timeout=1m" }

// sharedRedis is the URL of a database that only this test uses.
func sharedRedis(tb testing.TB) string {
	tb.Helper()
	o := redistest.New(tb).(*redis.Client).Options()
	return unhurried("unix://"+o.Addr) + "&db=" + strconv.Itoa(o.DB)
}

func (h installation) args(more ...string) []string {
	return append([]string{
		"serve", "--dev", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-level", "debug",
		"--redis", h.redis, "--data-dir", h.dir, "--config", filepath.Join(h.dir, "config.yml"), "--storage", h.database,
	}, more...)
}

// importData runs the command on the daemon's database.
func (h installation) importData(tb testing.TB, stdin string, files ...string) result {
	tb.Helper()
	return command(tb, stdin, append([]string{"import", "--data-dir", h.dir, "--storage", h.database}, files...)...)
}

// running is a daemon that has begun.
type running struct {
	api, admin     string // base addresses
	token          string
	http           *http.Client // nil: the usual one
	stdout, stderr *lockedBuffer
	signal         func(os.Signal)
	done           chan struct{}
	code           int // once done is closed
}

// start runs the daemon inside the test, until it listens.
func (h installation) start(tb testing.TB, more ...string) *running {
	tb.Helper()
	r := h.begin(tb, more...)
	r.await(tb)
	return r
}

func (h installation) begin(tb testing.TB, more ...string) *running {
	tb.Helper()
	return beginWith(tb, h.args(more...))
}

func beginWith(tb testing.TB, args []string) *running {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{stdout: &lockedBuffer{}, stderr: &lockedBuffer{}, done: make(chan struct{})}
	r.signal = func(os.Signal) { cancel() }
	go func() {
		defer close(r.done)
		r.code = run(ctx, args, r.stdout, r.stderr)
	}()
	tb.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// startChild runs the daemon as a process that can be killed, until it listens.
func (h installation) startChild(tb testing.TB) *running {
	tb.Helper()
	r := h.beginChild(tb)
	r.await(tb)
	return r
}

func (h installation) beginChild(tb testing.TB) *running {
	tb.Helper()
	r := &running{stdout: &lockedBuffer{}, stderr: &lockedBuffer{}, done: make(chan struct{})}
	cmd := exec.CommandContext(context.Background(), cmp.Or(h.binary, os.Args[0]), h.args()...)
	cmd.Env = append(append(os.Environ(), childVariable+"=1"), h.environment...)
	cmd.Stdout, cmd.Stderr = r.stdout, r.stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	r.signal = func(s os.Signal) { _ = cmd.Process.Signal(s) } // it may have ended
	go func() {
		defer close(r.done)
		_ = cmd.Wait() // the exit code says it
		r.code = cmd.ProcessState.ExitCode()
	}()
	tb.Cleanup(func() {
		r.signal(syscall.SIGKILL)
		<-r.done
	})
	return r
}

var (
	listeningLine = regexp.MustCompile(`"msg":"listening","address":"([^"]+)","admin_address":"([^"]+)"`)
	tokenLine     = regexp.MustCompile(`export TOKEN=(\S+)`)
)

func (r *running) await(tb testing.TB) {
	tb.Helper()
	var addresses, token []string
	eventually(tb, patience, "the daemon listens", func() bool {
		select {
		case <-r.done:
			tb.Fatalf("the daemon ended with %d:\n%s", r.code, r.stderr)
		default:
		}
		addresses = listeningLine.FindStringSubmatch(r.stderr.String())
		token = tokenLine.FindStringSubmatch(r.stdout.String())
		return addresses != nil && token != nil
	})
	r.api, r.admin, r.token = "http://"+addresses[1], "http://"+addresses[2], token[1]
}

// stop ends the daemon in order and checks that it did.
func (r *running) stop(tb testing.TB) {
	tb.Helper()
	r.signal(syscall.SIGTERM)
	r.ended(tb)
	if r.code != exitOK {
		tb.Errorf("exit code %d:\n%s", r.code, r.stderr)
	}
}

func (r *running) ended(tb testing.TB) {
	tb.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		tb.Fatal("the daemon does not end")
	}
}

// do asks the API and returns the status, the headers and the body.
func (r *running) do(tb testing.TB, method, path, body string) (int, http.Header, string) {
	tb.Helper()
	req, _ := http.NewRequestWithContext(tb.Context(), method, r.api+path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+r.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := cmp.Or(r.http, http.DefaultClient).Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(answer)
}

// answered reads from the API, and repeats the request while the daemon answers that it is busy.
func (r *running) answered(tb testing.TB, path string) (status int, body string) {
	tb.Helper()
	eventually(tb, patience, "GET "+path+" is not answered by 503", func() bool {
		status, _, body = r.do(tb, http.MethodGet, path, "")
		return status != http.StatusServiceUnavailable
	})
	return status, body
}

// read reads something that must be there.
func (r *running) read(tb testing.TB, path string, into any) {
	tb.Helper()
	status, body := r.answered(tb, path)
	if status != http.StatusOK {
		tb.Fatalf("GET %s: %d %s", path, status, body)
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		tb.Fatal(err)
	}
}

// deliveries reads the whole list, by id.
func (r *running) deliveries(tb testing.TB, statuses ...string) map[string]gen.Delivery {
	tb.Helper()
	all := map[string]gen.Delivery{}
	for _, status := range statuses {
		path := "/api/v1/deliveries?size=100"
		if status != "" {
			path += "&status=" + status
		}
		for cursor := ""; ; {
			var page gen.DeliveryList
			r.read(tb, path+cursor, &page)
			for _, d := range page.Content {
				all[d.ID] = d
			}
			if page.NextCursor == "" {
				break
			}
			cursor = "&cursor=" + page.NextCursor
		}
	}
	return all
}

// cli runs a command against this daemon. Unless it says otherwise, event send waits for a very busy daemon.
func (r *running) cli(tb testing.TB, stdin, name string, args ...string) result {
	tb.Helper()
	if name == "event" && args[0] == "send" && !slices.Contains(args, "--retry-for") {
		args = append(args, "--retry-for", "5m")
	}
	return command(tb, stdin, append([]string{name, "--url", r.api, "--token-file", secretFile(tb, r.token)}, args...)...)
}

// eventLines are n events as NDJSON, the same ones at each call with from.
func eventLines(from, n int, at time.Time) string {
	var b strings.Builder
	for i := from; i < from+n; i++ {
		fmt.Fprintf(&b, `{"id":"evt_%d","event":"PAYMENT_PAID","timestamp":%d,"metadata":{"n":%d}}`+"\n", i, at.UnixMilli(), i)
	}
	return b.String()
}

func eventBody(id string) string {
	return fmt.Sprintf(`{"id":%q,"event":"PAYMENT_PAID","timestamp":%d,"metadata":{}}`, id, time.Now().UnixMilli())
}

// endpoint receives deliveries and verifies each.
type endpoint struct {
	*httptest.Server
	mu       sync.Mutex
	answer   func(id string) int                                   // nil: 204
	hold     func(id string, gone <-chan struct{}) (answered bool) // called before the answer; false: the sender has disconnected
	official *standardwebhooks.Webhook
	secret   string
	anyTime  bool // the clock of the daemon is off
	// subscriber is set by subscribe.
	subscriber uuid.UUID

	posts  int
	came   map[string]int // deliveries, by event
	ok     map[string]int // those answered 2xx
	bodies map[string]string
	wrong  []error
}

func newEndpoint(tb testing.TB, answer func(id string) int) *endpoint {
	tb.Helper()
	e := &endpoint{answer: answer, came: map[string]int{}, ok: map[string]int{}, bodies: map[string]string{}}
	e.Server = httptest.NewServer(e)
	tb.Cleanup(e.Close)
	return e
}

// subscribe registers the endpoint for these events.
func (e *endpoint) subscribe(tb testing.TB, r *running, events ...string) gen.SubscriberWithSecret {
	tb.Helper()
	body, _ := json.Marshal(gen.SubscriberCreate{Name: new(tb.Name()), CallbackURL: new(e.URL + "/hook"), Events: &events})
	status, _, answer := r.do(tb, http.MethodPost, "/api/v1/subscribers", string(body))
	var created gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(answer), &created); err != nil || status != http.StatusCreated {
		tb.Fatalf("subscribe: %d %s", status, answer)
	}
	e.setSubscriber(tb, created.UUID, created.Secret)
	return created
}

// setSubscriber sets the endpoint's subscriber and signing secret.
func (e *endpoint) setSubscriber(tb testing.TB, subscriber uuid.UUID, secret string) {
	tb.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var err error
	if e.official, err = standardwebhooks.NewWebhook(secret); err != nil {
		tb.Fatal(err)
	}
	e.secret, e.subscriber = secret, subscriber
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := r.Header.Get("webhook-id")
	if !e.holds(r, id) {
		return
	}
	status := http.StatusNoContent
	if e.answer != nil {
		status = e.answer(id)
	}
	e.note(r, id, body, status)
	w.WriteHeader(status)
}

func (e *endpoint) note(r *http.Request, id string, body []byte, status int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.posts++
	e.came[id]++
	if e.official == nil {
		e.wrong = append(e.wrong, fmt.Errorf("a delivery before the subscription"))
		return
	}
	verify := e.official.Verify
	if e.anyTime {
		verify = e.official.VerifyIgnoringTimestamp
	}
	if err := verify(body, r.Header); err != nil {
		e.wrong = append(e.wrong, fmt.Errorf("%s: %w", id, err))
	}
	if before, again := e.bodies[id]; again && before != string(body) {
		e.wrong = append(e.wrong, fmt.Errorf("%s came with another body", id))
	}
	e.bodies[id] = string(body)
	if status/100 == 2 {
		e.ok[id]++
	}
}

// holdWith sets a function that is called before each answer.
func (e *endpoint) holdWith(hold func(id string, gone <-chan struct{}) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = hold
}

func (e *endpoint) holds(r *http.Request, id string) (answered bool) {
	e.mu.Lock()
	hold := e.hold
	e.mu.Unlock()
	return hold == nil || hold(id, r.Context().Done())
}

// counts returns the number of acknowledged events, of events acknowledged more than once,
// and of POSTs. It fails the test if a delivery was not signed right.
func (e *endpoint) counts(tb testing.TB) (delivered, repeated, posts int) {
	tb.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.wrong) > 0 {
		tb.Fatalf("%d bad deliveries, the first: %v", len(e.wrong), e.wrong[0])
	}
	for _, n := range e.ok {
		if n > 1 {
			repeated++
		}
	}
	return len(e.ok), repeated, e.posts
}

// of returns how often an event was acknowledged, and how often it was posted.
func (e *endpoint) of(id string) (taken, posts int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ok[id], e.came[id]
}

func (e *endpoint) has(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ok[id] > 0
}

func (e *endpoint) awaits(tb testing.TB, n int) {
	tb.Helper()
	last := 0
	defer func() {
		if tb.Failed() {
			tb.Logf("delivered: %d of %d", last, n)
		}
	}()
	eventually(tb, deliveryPatience, fmt.Sprintf("%d events delivered", n), func() bool {
		last, _, _ = e.counts(tb)
		return last >= n
	})
}
