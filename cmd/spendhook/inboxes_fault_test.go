//go:build faults

package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"spendhook/api/gen"
	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

var (
	inboxEvents = flag.Int("inbox-events", 3000, "how many events TestInboxesHaveEveryEvent emits")
	inboxAway   = flag.Duration("inbox-away", 0, "how long one of its receivers is away at least")
)

const inboxBatch = 50

// inboxProgram is the conformance program of a language, which receives with its library, behind a network that loses and
// delays deliveries.
type inboxProgram struct {
	*chaosCompany

	language string
	command  []string
	needs    string // a file without which it cannot run
	settings string // of its subscriber
	even     bool   // its filter lets only such events pass
	lost     uint32 // percent of the events whose deliveries are acknowledged and never arrive
	away     bool   // it does not run in the second third of the time

	network *httptest.Server
	env     []string
	calm    atomic.Bool // the network loses nothing
	kills   int
	absent  time.Duration // how long it was away

	mu  sync.Mutex
	url string // where it listens; "": it does not run
	cmd *exec.Cmd
}

// inboxPrograms are those that are built.
func inboxPrograms(t *testing.T) []*inboxProgram {
	t.Helper()
	clients, err := filepath.Abs(filepath.Join("..", "..", "clients"))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "spendhook/clients/go/conformance").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := []*inboxProgram{
		{language: "Go", command: []string{program}, needs: program, settings: `,"ordered":true`},
		{
			language: "TypeScript", lost: 10, needs: filepath.Join(clients, "typescript", "dist"),
			command: []string{filepath.Join(clients, "typescript", "node_modules", "node", "bin", "node"), filepath.Join(clients, "typescript", "conformance.mjs")},
		},
		{
			language: "Python", lost: 10, settings: `,"filter":"metadata.even == true"`, even: true,
			command: []string{"python3", filepath.Join(clients, "python", "conformance.py")}, needs: clients,
		},
		{
			language: "Java", lost: 5, away: true, command: []string{filepath.Join(clients, "java", "conformance.sh")},
			needs: filepath.Join(clients, "java", "build", "conformance", "Conformance.class"),
		},
	}
	return slices.DeleteFunc(all, func(p *inboxProgram) bool {
		_, err := os.Stat(p.needs)
		switch {
		case err == nil:
		case *inboxAway > 0:
			t.Fatalf("%s is not built, make test-examples builds it", p.language)
		default:
			t.Logf("%s is left out, make test-examples builds it", p.language)
		}
		return err != nil
	})
}

// Programs that receive with the libraries, while replicas, Redis and they themselves are killed, deliveries and answers are
// lost and come out of order, and one of them is away: in the end each has worked on exactly the events that it was to
// get, each once, in order where that was asked for.
func TestInboxesHaveEveryEvent(t *testing.T) {
	co := startChaosCompany(t)
	c := co.chaos
	api := httptest.NewServer(co.anyReplica())
	t.Cleanup(api.Close)
	programs := inboxPrograms(t)
	for _, p := range programs {
		p.chaosCompany = co
		p.subscribe(t, api.URL)
		p.start(t)
	}

	ctx, end := context.WithCancel(t.Context())
	defer end()
	var faults sync.WaitGroup
	var idle atomic.Bool // while the test waits for the end of -inbox-away: nothing is emitted, and nothing is killed
	faults.Go(func() {
		for pause.For(ctx, 2*time.Second+rand.N(6*time.Second)) {
			if !idle.Load() {
				c.cause(rand.IntN(7)) //nolint:contextcheck // replicas outlive ctx
			}
		}
	})
	leave, left, back := make(chan struct{}), make(chan struct{}, len(programs)), make(chan struct{}) // a third of the events comes between leave and back
	for _, p := range programs {
		faults.Go(func() { p.fail(ctx, &idle, leave, left, back) })
	}
	done, since := 0, time.Now()
	for ; done < *inboxEvents; done += inboxBatch {
		switch done / inboxBatch {
		case *inboxEvents / inboxBatch / 3:
			close(leave)
			for range slices.DeleteFunc(slices.Clone(programs), func(p *inboxProgram) bool { return !p.away }) {
				<-left
			}
			since = time.Now()
		case *inboxEvents / inboxBatch * 2 / 3:
			idle.Store(true)
			pause.For(ctx, *inboxAway-time.Since(since))
			idle.Store(false)
			close(back)
		}
		co.emitBatch(done, inboxBatch)
		pause.For(ctx, rand.N(300*time.Millisecond))
	}
	end()
	faults.Wait()
	for _, p := range programs {
		p.calm.Store(true)
	}
	co.emitBatch(done, 2) // says to each what it lacks
	total := done + 2
	t.Logf("%d events; faults of replicas and Redis: %v", total, c.counts())
	for _, p := range programs {
		p.account(total)
		p.kill()
	}
	for _, d := range c.daemons {
		d.stop(t)
	}
}

// startChaosCompany starts two replicas and their Redis, with a company that has no receivers.
func startChaosCompany(t *testing.T) *chaosCompany {
	t.Helper()
	server := redistest.Start(t, redistest.Options{AOF: true})
	c := &chaos{t: t, server: server}
	for range 2 {
		c.installations = append(c.installations, newInstallation(t, server.URL(), chaosSettings))
	}
	co := &chaosCompany{chaos: c, id: uuid.UUID{15: 1, 6: 0x40, 8: 0x80}}
	for _, h := range c.installations {
		d := h.startChild(t)
		c.daemons = append(c.daemons, d)
		co.tokens = append(co.tokens, d.as(t, h, co.id).token)
	}
	return co
}

// anyReplica is the API of a replica at random, with the company's token.
func (co *chaosCompany) anyReplica() http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			i := rand.IntN(2)
			co.mu.Lock()
			to, err := url.Parse(co.daemons[i].api)
			co.mu.Unlock()
			if err != nil {
				panic(err)
			}
			r.SetURL(to)
			r.Out.Header.Set("Authorization", "Bearer "+co.tokens[i])
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

// emitBatch sends the events from a number on, again and again until they are accepted.
func (co *chaosCompany) emitBatch(from, count int) {
	at := time.Now().UnixMilli()
	items := make([]string, count)
	for i := range items {
		n := from + i
		items[i] = fmt.Sprintf(`{"id":"evt_%d","event":"PAYMENT_PAID","timestamp":%d,"metadata":{"even":%t}}`, n, at, n%2 == 0)
	}
	status, answer := co.call(co.t.Context(), http.MethodPost, "/api/v1/events", "["+strings.Join(items, ",")+"]", "")
	if accepted := strings.Count(answer, `"ACCEPTED"`) + strings.Count(answer, `"DUPLICATE"`); accepted != count {
		co.t.Fatalf("events from %d on: %d %s", from, status, answer)
	}
}

func (p *inboxProgram) subscribe(t *testing.T, api string) {
	t.Helper()
	p.network = httptest.NewServer(p)
	t.Cleanup(p.network.Close)
	body := fmt.Sprintf(`{"name":%q,"callbackUrl":%q,"events":["PAYMENT_PAID"]%s}`, p.language, p.network.URL, p.settings)
	status, answer := p.call(t.Context(), http.MethodPost, "/api/v1/subscribers", body, uuid.NewString())
	var created gen.SubscriberWithSecret
	if err := json.Unmarshal([]byte(answer), &created); err != nil || status != http.StatusCreated {
		t.Fatalf("subscribe: %d %s", status, answer)
	}
	database := filepath.Join(t.TempDir(), "inbox.db")
	if p.language == "Java" {
		database = "jdbc:sqlite:" + database
	}
	p.env = append(os.Environ(), "PORT=0", "FILL_GAPS=1", "DATABASE="+database, "SPENDHOOK_SECRET="+created.Secret,
		"SPENDHOOK_URL="+api, "SPENDHOOK_SUBSCRIBER="+created.UUID.String(), "SPENDHOOK_TOKEN=replaced")
}

// ServeHTTP is the network in front of the program.
func (p *inboxProgram) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	h := fnv.New32a()
	_, _ = io.WriteString(h, p.language+req.Header.Get("Webhook-Id"))
	if !p.calm.Load() {
		if h.Sum32()%100 < p.lost {
			w.WriteHeader(http.StatusNoContent) // a broken proxy: nobody else knows that it is lost
			return
		}
		if rand.IntN(10) == 0 {
			pause.For(req.Context(), rand.N(300*time.Millisecond))
		}
	}
	status := p.forward(req, body)
	if !p.calm.Load() && rand.IntN(20) == 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

func (p *inboxProgram) forward(req *http.Request, body []byte) (status int) {
	p.mu.Lock()
	to := p.url
	p.mu.Unlock()
	if to == "" {
		return http.StatusBadGateway
	}
	out, err := http.NewRequestWithContext(req.Context(), http.MethodPost, to+"/hooks", bytes.NewReader(body))
	if err != nil {
		p.t.Error(err)
		return http.StatusBadGateway
	}
	out.Header = req.Header
	resp, err := http.DefaultClient.Do(out)
	if err != nil {
		return http.StatusBadGateway
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// start starts the program and waits until it listens.
func (p *inboxProgram) start(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.command[0], p.command[1:]...)
	cmd.Env = p.env
	var complaints lockedBuffer
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Errorf("%s: %v", p.language, err)
		return
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	to, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		t.Errorf("%s does not listen: %q %s", p.language, line, complaints.String())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.url = cmd, to
}

func (p *inboxProgram) kill() {
	p.mu.Lock()
	cmd := p.cmd
	p.url = ""
	p.mu.Unlock()
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	p.kills++
}

// fail kills the program now and then, until ctx ends, but not while the test is idle. One that is away says so on left, and does not run between leave and
// back.
func (p *inboxProgram) fail(ctx context.Context, idle *atomic.Bool, leave <-chan struct{}, left chan<- struct{}, back <-chan struct{}) {
	for ctx.Err() == nil {
		next, cancel := context.WithTimeout(ctx, 3*time.Second+rand.N(6*time.Second))
		select {
		case <-leave:
			leave = nil
			if p.away {
				p.kill()
				left <- struct{}{}
				since := time.Now()
				<-back
				p.absent = time.Since(since)
				p.start(p.t) //nolint:contextcheck // it outlives ctx
			}
		case <-next.Done():
			if !idle.Load() {
				p.kill()
				p.start(p.t) //nolint:contextcheck // it outlives ctx
			}
		}
		cancel()
	}
}

// account waits until the program has as many events as it is to get, and compares them.
func (p *inboxProgram) account(total int) {
	p.t.Helper()
	var want []string
	for n := range total {
		if !p.even || n%2 == 0 {
			want = append(want, "evt_"+strconv.Itoa(n))
		}
	}
	var ids []string
	if p.away && p.absent == 0 {
		p.t.Errorf("%s was not away", p.language)
	}
	eventually(p.t, deliveryPatience+time.Duration(total)*5*time.Millisecond, p.language+" has every event", func() bool {
		resp, err := http.Get(p.url + "/inbox")
		if err != nil {
			p.t.Fatal(err)
		}
		defer resp.Body.Close()
		err = json.UnmarshalRead(resp.Body, &ids)
		return err == nil && len(ids) >= len(want)
	})
	times := map[string]int{}
	early := 0
	for i, id := range ids {
		times[id]++
		if p.settings == `,"ordered":true` && id != want[min(i, len(want)-1)] {
			early++
		}
	}
	wrong := 0
	for _, id := range want {
		if times[id] != 1 {
			wrong++
		}
	}
	p.t.Logf("%s: killed %d times, away for %s; %d events to get, %d worked on, %d not exactly once, %d out of order", p.language, p.kills, p.absent.Round(time.Second), len(want), len(ids), wrong, early)
	if wrong > 0 || early > 0 || len(ids) != len(want) {
		p.t.Errorf("%s has not exactly what it was to get", p.language)
	}
}
