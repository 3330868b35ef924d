package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// loadSpec is the task of the load generator, which reads it from stdin. The load ends after
// Count events or after For, whichever comes first.
type loadSpec struct {
	Targets   []target      `json:"targets"` // the clients are spread over them; a client changes its target after a failure
	Bare      bool          `json:"bare"`    // signed POSTs to a receiver instead of events to a daemon
	Plain     bool          `json:"plain"`   // send events with net/http's client, which costs more
	Run       int64         `json:"run"`
	First     int64         `json:"first"` // number of the first event
	Companies int           `json:"companies"`
	Of        []int         `json:"of,omitempty"`    // the companies, instead of the first ones
	Types     int           `json:"types,omitempty"` // event types, in turn; 0: eventType
	Clients   int           `json:"clients"`
	Batch     int           `json:"batch"` // events in a request; 1: no array
	Rate      float64       `json:"rate"`  // requests/s; 0: each client as fast as it is answered
	Count     int64         `json:"count"`
	For       time.Duration `json:"for"`
	CA        string        `json:"ca,omitempty"`    // file of the authority that the bare loop trusts
	HTTP2     bool          `json:"http2,omitempty"` // in the bare loop
}

// company returns the company of event n.
func (s loadSpec) company(n int64) int {
	if len(s.Of) > 0 {
		return s.Of[n%int64(len(s.Of))]
	}
	return int(n % int64(s.Companies))
}

// eventType is the type of event n.
func (s loadSpec) eventType(n int64) string {
	if s.Types == 0 {
		return eventType
	}
	return numberedType(int(n % int64(s.Types)))
}

// target is an address that the load generator sends to.
type target struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

// loadResult is the result of a load. The generator prints it.
type loadResult struct {
	Accepted int64         `json:"accepted"` // events, each exactly once
	Retried  int64         `json:"retried"`  // requests that were sent again
	Lost     int64         `json:"lost"`     // events without an answer: maybe accepted, maybe not
	Start    time.Time     `json:"start"`
	Took     time.Duration `json:"took"` // until the last answer
	P50      int64         `json:"p50"`  // µs until the answer
	P99      int64         `json:"p99"`
	Refused  int64         `json:"refused"`           // answers 429 and 503
	Trouble  string        `json:"trouble,omitempty"` // the first failure of a request
}

// loadCmd is the load generator's process.
type loadCmd struct{}

// Run runs the load that it reads from stdin.
func (loadCmd) Run(ctx context.Context, term *console) error {
	var spec loadSpec
	if err := json.NewDecoder(term.in).Decode(&spec); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	l, err := newLoad(spec)
	if err != nil {
		return err
	}
	return json.NewEncoder(term.out).Encode(l.run(ctx))
}

// load is a running load.
type load struct {
	loadSpec
	plain    *http.Client
	start    time.Time
	next     atomic.Int64
	accepted atomic.Int64
	retried  atomic.Int64
	lost     atomic.Int64
	refused  atomic.Int64

	mu        sync.Mutex
	trouble   string
	latencies []uint32
}

func newLoad(spec loadSpec) (*load, error) {
	client, err := newPlainClient(spec)
	return &load{loadSpec: spec, plain: client}, err
}

// run sends until the load or ctx ends. It waits for the requests that have begun.
func (l *load) run(ctx context.Context) loadResult {
	l.start = time.Now()
	var clients sync.WaitGroup
	turns := turns(ctx, l.start, l.Rate, l.For)
	begun := context.WithoutCancel(ctx)
	for i := range l.Clients {
		clients.Go(func() { l.runClient(begun, i, turns) })
	}
	clients.Wait()
	took := time.Since(l.start)
	slices.Sort(l.latencies)
	return loadResult{
		Accepted: l.accepted.Load(), Retried: l.retried.Load(), Lost: l.lost.Load(), Refused: l.refused.Load(), Trouble: l.trouble,
		Start: l.start, Took: took,
		P50: int64(quantile(l.latencies, 0.50)), P99: int64(quantile(l.latencies, 0.99)),
	}
}

// turns returns the planned times to send at, at the intended rate. A late client gets the time
// that it missed, so the delay is part of the latency. Without a rate the time is now.
func turns(ctx context.Context, start time.Time, rate float64, length time.Duration) func() (time.Time, bool) {
	end := start.Add(length)
	var turn atomic.Int64
	return func() (time.Time, bool) {
		now := time.Now()
		at := now
		if rate > 0 {
			at = start.Add(time.Duration(float64(turn.Add(1)-1) / rate * float64(time.Second)))
		}
		if at.After(end) || pause(ctx, at.Sub(now)) != nil {
			return at, false
		}
		return at, true
	}
}

func (l *load) runClient(ctx context.Context, i int, turn func() (time.Time, bool)) {
	c := &loadClient{load: l, by: l.poster(), to: i % len(l.Targets)}
	defer c.by.close()
	for {
		at, ok := turn()
		if !ok {
			break
		}
		n := l.next.Add(int64(l.Batch)) - int64(l.Batch)
		if n+int64(l.Batch) > l.Count {
			break
		}
		c.send(ctx, l.First+n, at)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latencies = append(l.latencies, c.latencies...)
}

// loadClient sends one request at a time.
type loadClient struct {
	*load
	by        poster
	to        int // index of the target
	body      []byte
	latencies []uint32
}

const (
	retryFor   = 30 * time.Second
	retryEvery = 20 * time.Millisecond
)

// send sends the events from number n on until they are accepted. A request without an answer is
// sent again: its ids make accepted events duplicates.
func (c *loadClient) send(ctx context.Context, n int64, at time.Time) {
	c.build(n, at)
	for tries := 0; time.Since(at) < retryFor; tries++ {
		if tries > 0 {
			c.retried.Add(1)
			c.to = (c.to + 1) % len(c.Targets)
			if pause(ctx, retryEvery) != nil {
				break
			}
		}
		err := c.post(ctx, n, at)
		if err == nil {
			c.accepted.Add(int64(c.Batch))
			c.latencies = append(c.latencies, uint32(max(0, time.Since(at).Microseconds()))) //nolint:gosec // up to 71 min
			return
		}
		c.note(err)
	}
	c.lost.Add(int64(c.Batch))
}

func (c *loadClient) build(n int64, at time.Time) {
	c.body = c.body[:0]
	for i := range int64(c.Batch) {
		if c.Batch > 1 {
			c.body = append(c.body, ",["[btoi(i == 0)])
		}
		c.body = appendEvent(c.body, eventID{c.Run, n + i, at}, company(c.company(n+i)), c.eventType(n+i), c.start)
	}
	if c.Batch > 1 {
		c.body = append(c.body, ']')
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *loadClient) post(ctx context.Context, n int64, at time.Time) error {
	status, answer, err := c.by.post(ctx, c.Targets[c.to], eventID{c.Run, n, at}, c.body)
	if err != nil {
		return err
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		c.refused.Add(1)
	}
	if status/100 != 2 || status == http.StatusMultiStatus {
		return fmt.Errorf("%d %s: %.300s", status, http.StatusText(status), answer)
	}
	return nil
}

func (c *loadClient) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trouble == "" && !errors.Is(err, context.Canceled) {
		c.trouble = err.Error()
	}
}
