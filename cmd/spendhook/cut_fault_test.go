//go:build faults

package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// A step is a kind of exchange between a daemon and Redis: the commands without the parts that
// differ between events and runs, and whether the reply contained the event.
type step string

var (
	uuids  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	digits = regexp.MustCompile(`\d+`)
)

func stepOf(request [][]string, reply []byte, event string) step {
	var parts []string
	for _, command := range request {
		parts = append(parts, kindOf(command))
	}
	s := strings.Join(slices.Compact(parts), "; ")
	if bytes.Contains(reply, []byte(event)) && !mentions(request, event) {
		s += tells
	}
	return step(s)
}

// tells marks a step that belongs to the event by its reply alone. Its request cannot be
// lost on purpose, since it looks like the requests of other events.
const tells = " -> event"

func mentions(request [][]string, event string) bool {
	return slices.ContainsFunc(request, func(command []string) bool {
		return slices.ContainsFunc(command, func(word string) bool { return strings.Contains(word, event) })
	})
}

// kindOf is a command's name, its script, and its first key without ids.
func kindOf(command []string) string {
	words := command[:1]
	switch {
	case strings.HasPrefix(strings.ToLower(command[0]), "eval") && len(command) > 3:
		script := command[1]
		words = []string{command[0], script[:min(len(script), 8)], keyOf(command[3])}
	case len(command) > 1:
		words = []string{command[0], keyOf(command[1])}
	}
	return strings.Join(words, " ")
}

func keyOf(key string) string {
	key = uuids.ReplaceAllString(key, "U")
	if i := strings.Index(key, single); i >= 0 {
		key = key[:i] + "E"
	}
	return digits.ReplaceAllString(key, "#")
}

// cutter is a plan that records the steps and cuts the connection at one of them.
type cutter struct {
	mu    sync.Mutex
	event string
	seen  map[step]int
	at    step
	reply bool // lose the reply, not the request
	left  int  // how many more times
}

func (c *cutter) plan(request [][]string, reply []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := stepOf(request, reply, c.event)
	if reply != nil {
		c.seen[s]++
	}
	if c.left == 0 || s != c.at || (reply != nil) != c.reply {
		return true
	}
	c.left--
	return false
}

// begin clears the recorded steps, and cuts the given step that many times.
func (c *cutter) begin(event string, at step, reply bool, times int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event, c.at, c.reply, c.left = event, at, reply, times
	c.seen = map[step]int{}
}

// end returns the steps, and how many cuts are left.
func (c *cutter) end() (seen map[step]int, left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, c.left = c.left, 0
	return c.seen, left
}

// The connection is cut at every step that an event takes through Redis. The request is lost,
// or the reply; once, so that the client library retries, or three times, so that its retries
// are exhausted. The source sends the event until it is accepted. Each event is accepted,
// sent and recorded once.
func TestCutConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	proxy := redistest.NewProxy(t, server)
	tr := newTrial(t, server.Client(), newInstallation(t, proxy.URL(), briefRetries))
	tr.load.pause()
	tr.account()
	c := &cutter{}
	proxy.Follow(c.plan)

	way := tr.learnWay(c)
	t.Logf("the way of an event has %d steps:\n%s", len(way), joinSteps(way))
	n := 0
	for _, at := range way {
		for _, times := range []int{1, 3} {
			for _, reply := range []bool{false, true} {
				if !reply && strings.HasSuffix(string(at), tells) {
					continue
				}
				n++
				tr.cut(c, single+strconv.Itoa(n), at, reply, times)
			}
		}
	}
	proxy.Follow(nil)
	tr.load.resume()
	tr.grow(100)
	tr.finish()
}

// learnWay sends some events without cuts, and returns the steps that all of them took.
func (tr *trial) learnWay(c *cutter) []step {
	tr.t.Helper()
	var way map[step]int
	for n := range 5 {
		event := single + "way-" + strconv.Itoa(n)
		c.begin(event, "", false, 0)
		tr.one(event)
		seen, _ := c.end()
		if way == nil {
			way = seen
		}
		maps.DeleteFunc(way, func(s step, _ int) bool { return seen[s] == 0 })
	}
	return slices.Sorted(maps.Keys(way))
}

func joinSteps(way []step) string {
	var b strings.Builder
	for _, s := range way {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	return b.String()
}

// cut sends an event, cuts the connection at a step, and checks the deliveries. All due work
// of a partition shares wake-ups, so an event may skip a step: then cut sends the next event.
func (tr *trial) cut(c *cutter, event string, at step, reply bool, times int) {
	tr.t.Helper()
	what := fmt.Sprintf("%d requests lost at %q", times, at)
	if reply {
		what = fmt.Sprintf("%d replies lost at %q", times, at)
	}
	for n := range 20 {
		if tr.cutOne(c, event+"-"+strconv.Itoa(n), what, at, reply, times) {
			return
		}
	}
	tr.t.Errorf("%s: there was nothing to cut", what)
}

// cutOne reports whether the event took the step.
func (tr *trial) cutOne(c *cutter, event, what string, at step, reply bool, times int) bool {
	tr.t.Helper()
	began := time.Now()
	c.begin(event, at, reply, times)
	tr.one(event)
	_, left := c.end()
	tr.t.Logf("%s: %v, %d cuts", what, time.Since(began).Round(time.Millisecond), times-left)
	for i, e := range tr.endpoints {
		if _, posts := e.of(event); posts != 1+i {
			tr.t.Errorf("%s: %d POSTs to endpoint %d", what, posts, i)
		}
	}
	return left < times
}

// one sends an event and waits until it is settled. The first endpoint accepts the first
// attempt, the second endpoint the second one.
func (tr *trial) one(event string) {
	tr.t.Helper()
	tr.load.one(event)
	for _, e := range tr.endpoints {
		eventually(tr.t, deliveryPatience, event+" is delivered", func() bool { return e.has(event) })
	}
	eventually(tr.t, deliveryPatience, event+" is settled", func() bool { return tr.pending() == 0 })
}

// The network is slow, then so slow that every command times out. Then it loses one request
// or reply in thirty, and then all connections at once.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	proxy := redistest.NewProxy(t, server)
	tr := newTrial(t, server.Client(), newInstallation(t, proxy.URL(), briefRetries))

	proxy.Follow(slow(50 * time.Millisecond))
	tr.grow(100)
	proxy.Follow(slow(2 * time.Second)) // longer than a command may take
	pause.For(t.Context(), 6*time.Second)
	proxy.Follow(nil)
	tr.grow(100)
	proxy.Follow(func([][]string, []byte) bool { return rand.IntN(30) > 0 })
	tr.grow(500)
	proxy.Follow(nil)
	for range 5 {
		proxy.CutAll()
		tr.grow(50)
	}
	tr.finish()
}

// slow delays each reply.
func slow(by time.Duration) redistest.Plan {
	return func(_ [][]string, reply []byte) bool {
		if reply != nil {
			pause.For(context.Background(), by)
		}
		return true
	}
}
