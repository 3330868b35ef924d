//go:build faults

package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// steppedDaemon builds the daemon with a patched standard library. A signal steps the clock
// of the whole process, including the libraries.
func steppedDaemon(t *testing.T) (binary string) {
	t.Helper()
	dir := filepath.Join(os.TempDir(), "spendhook-stepped-clock") // one place, so that go's cache knows it
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	const read = "\tsec, nsec, mono := runtimeNow()\n"
	before, after, ok := strings.Cut(string(source), "func Now() Time {\n"+read)
	if !ok {
		t.Fatal("time.Now of this Go version does not read the clock as expected")
	}
	stepped := before + "func Now() Time {\n" + read + "\tsec += step.Load()\n" + after
	if err := os.WriteFile(filepath.Join(dir, "time.go"), []byte(stepped), 0o600); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(library, "time.go"):     filepath.Join(dir, "time.go"),
		filepath.Join(library, "step.go"):     filepath.Join(here, "testdata/clock/step.go.txt"),
		filepath.Join(here, "clock_steps.go"): filepath.Join(here, "testdata/clock/signals.go.txt"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(t.TempDir(), "spendhook")
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// Under load, the machine's clock is set forward by an hour, back, and forward again. No event
// is lost, and no settled event is sent again. A token expires by the current clock. Waiting
// work is due by Redis's clock, so the steps do not delay it, even when asynq loses its tasks
// meanwhile.
func TestClockIsStepped(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	h := newInstallation(t, server.URL(), briefRetries)
	h.binary = steppedDaemon(t)
	tr := newTrial(t, server.Client(), h)
	for _, e := range tr.endpoints {
		e.ignoreTime()
	}
	brief := command(t, "", "token", "--data-dir", h.dir, "--company", developerCompany.String(),
		"--scope", "events:read", "--ttl", "30m")
	brief.want(t, exitOK, "ey", "")
	token := strings.TrimSpace(brief.stdout)

	tr.wantToken(token, http.StatusOK)
	for _, step := range []struct {
		signal os.Signal
		status int
	}{
		{syscall.SIGUSR1, http.StatusUnauthorized},
		{syscall.SIGUSR2, http.StatusOK},
		{syscall.SIGUSR1, http.StatusUnauthorized},
	} {
		tr.daemons[0].signal(step.signal)
		tr.wantToken(token, step.status)
		tr.deleteQueue()
		tr.grow(300)
	}
	tr.load.pause()
	if l := tr.account(); l.repeats > 0 {
		t.Errorf("%d POSTs were repeated", l.repeats)
	}
	tr.finish()
}

// The clocks of two replicas differ by 5 seconds. Each of them accepts half of a flood; one owns the
// partition and is overloaded, and then stops, so that the other one takes over what waits. Each event
// is sent once to each endpoint, and failed attempts are retried on schedule.
func TestClocksDiffer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	url, binary := server.URL(), steppedDaemon(t)
	ahead, right := newInstallation(t, url, briefRetries+sharedKey), newInstallation(t, url, briefRetries+sharedKey)
	ahead.binary, right.binary = binary, binary
	tr := newTrial(t, server.Client(), ahead, right)
	tr.daemons[0].signal(syscall.SIGWINCH)
	eventually(t, patience, "one clock is ahead", func() bool {
		before := tr.daemons[1].clock(t)
		return tr.daemons[0].clock(t).Sub(before) >= 4*time.Second
	})
	eventually(t, patience, "/readyz tells it", func() bool {
		_, ready := get(t, tr.daemons[0].admin+"/readyz")
		return strings.Contains(ready, "the clock of redis is ") && strings.Contains(ready, " behind this machine's")
	})
	tr.endpoints[0].holdWith(func(string, <-chan struct{}) bool {
		pause.For(t.Context(), 400*time.Millisecond) // slower than the events come
		return true
	})
	most := tr.flood(64, 100)
	if most < 500 {
		t.Errorf("only %d events were pending: no overload", most)
	}
	made := func(d *running) float64 {
		return metric(t, d, `spendhook_delivery_attempts_total{outcome="success"}`)
	}
	owner, other := 0, 1
	if made(tr.daemons[1]) > made(tr.daemons[0]) {
		owner, other = 1, 0
	}
	if n := made(tr.daemons[owner]); n < 1000 {
		t.Errorf("the owner made only %v deliveries", n)
	}
	tr.load.pause()
	tr.daemons[owner].stop(t)
	tr.daemons, tr.before = tr.daemons[other:other+1], tr.before[other:other+1]
	tr.load.aim(tr.daemons...)
	tr.load.resume()
	tr.grow(100)
	eventually(t, deliveryPatience, "the other replica delivers", func() bool { return made(tr.daemons[0]) >= 1000 })
	tr.load.stop()
	if l := tr.account(); l.repeats > 0 {
		t.Errorf("%d POSTs were repeated", l.repeats)
	}
	for _, e := range tr.endpoints {
		if _, repeated, _ := e.counts(t); repeated > 0 {
			t.Errorf("%d events were taken more than once", repeated)
		}
	}
	tr.end()
}

// clock returns the daemon's time, to the second.
func (r *running) clock(tb testing.TB) time.Time {
	tb.Helper()
	_, header, _ := r.do(tb, http.MethodGet, "/api/v1/events?size=1", "")
	at, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		tb.Fatal(err)
	}
	return at
}

// flood sends events from many clients to all daemons without pause. It returns the highest
// number of pending events.
func (tr *trial) flood(clients, each int) (most int) {
	tr.t.Helper()
	var sources sync.WaitGroup
	for c := range clients {
		sources.Go(func() {
			for n := range each {
				id := fmt.Sprintf("flood-%d-%d", c, n)
				tr.load.sendFrom(c, id, eventBody(id))
			}
		})
	}
	sent := make(chan struct{})
	go func() {
		sources.Wait()
		close(sent)
	}()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		most = max(most, tr.pending())
		select {
		case <-sent:
			return most
		case <-tick.C:
		}
	}
}

// wantToken waits until a request with the token is answered with the status.
func (tr *trial) wantToken(token string, want int) {
	tr.t.Helper()
	d := *tr.daemons[0]
	d.token = token
	eventually(tr.t, patience, "the token is answered by "+http.StatusText(want), func() bool {
		status, _, _ := d.do(tr.t, http.MethodGet, "/api/v1/events?size=1", "")
		return status == want
	})
}

// ignoreTime makes the endpoint accept any timestamp. Otherwise it would refuse deliveries of
// a daemon whose clock is an hour off.
func (e *endpoint) ignoreTime() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.anyTime = true
}
