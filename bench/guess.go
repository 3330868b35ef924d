package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// guessSpec is the task of the process that guesses client secrets. The process reads it
// from stdin. It ends when it has made Guesses and For is over.
type guessSpec struct {
	URL         string        `json:"url"`         // of the token endpoint
	From        string        `json:"from"`        // the source address of the connections
	Client      string        `json:"client"`      // the client whose secret is guessed
	Distributed bool          `json:"distributed"` // each guess names another source address and another client
	Guesses     int64         `json:"guesses"`
	Rate        float64       `json:"rate"` // guesses/s; 0: each connection as fast as it is answered
	Conns       int           `json:"conns"`
	For         time.Duration `json:"for"`
}

// guessResult is the result of the guesses, which the process prints.
type guessResult struct {
	Refused int64         `json:"refused"`           // answered 401
	Busy    int64         `json:"busy"`              // answered 503: too many credentials wait for their check
	Others  int64         `json:"others"`            // other answers, and failed requests
	Trouble string        `json:"trouble,omitempty"` // the first of the others
	Took    time.Duration `json:"took"`
}

func (r guessResult) sent() int64 { return r.Refused + r.Busy + r.Others }

// clean returns an error unless all guesses were answered 401 or 503.
func (r guessResult) clean() error {
	if r.Others > 0 {
		return fmt.Errorf("%d guesses were not refused: %s", r.Others, r.Trouble)
	}
	return nil
}

// guessLimit is far more time than the guesses take.
const guessLimit = 2 * time.Minute

// inProcess runs a process that guesses.
func (s *guessSpec) inProcess(ctx context.Context, r *guessResult) error {
	_, err := runWorker(ctx, "guess", s, r, guessLimit)
	return err
}

// guessCmd is the process that guesses.
type guessCmd struct{}

// Run runs the task that it reads from stdin.
func (guessCmd) Run(ctx context.Context, term *console) error {
	var spec guessSpec
	if err := json.NewDecoder(term.in).Decode(&spec); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	if err := lowerPriority(); err != nil {
		return err
	}
	return json.NewEncoder(term.out).Encode(spec.run(ctx))
}

// lowerPriority gives this process the lowest CPU priority, because a real attacker does not use
// the cores of the daemon. Linux has a scheduling policy for each thread. A new thread inherits the
// policy of the thread that started it.
func lowerPriority() error {
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		id, e := strconv.Atoi(thread.Name())
		if e == nil {
			e = schedIdle(id)
		}
		err = errors.Join(err, e)
	}
	return err
}

// schedIdle makes a thread run only on idle cores: SCHED_IDLE with the parameter 0.
func schedIdle(thread int) error {
	const policy = 5
	var priority int32
	_, _, e := syscall.Syscall(syscall.SYS_SCHED_SETSCHEDULER, uintptr(thread), policy, uintptr(unsafe.Pointer(&priority))) //nolint:gosec // as the system call wants it
	if e != 0 {
		return e
	}
	return nil
}

// guesser is a run of guesses.
type guesser struct {
	*guessSpec
	client                *http.Client
	refused, busy, others atomic.Int64
	trouble               atomic.Pointer[string]
}

func (s *guessSpec) run(ctx context.Context) guessResult {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(s.From)}}
	transport := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: s.Conns}
	defer transport.CloseIdleConnections()
	g := &guesser{guessSpec: s, client: &http.Client{Timeout: 10 * time.Second, Transport: transport}}
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	turn := turns(ctx, start, s.Rate, time.Hour)
	for range s.Conns {
		all.Go(func() {
			for {
				n := next.Add(1)
				if _, ok := turn(); !ok || (n > s.Guesses && time.Since(start) >= s.For) {
					return
				}
				g.guess(ctx, n)
			}
		})
	}
	all.Wait()
	r := guessResult{
		Refused: g.refused.Load(), Busy: g.busy.Load(), Others: g.others.Load(), Took: time.Since(start),
	}
	if t := g.trouble.Load(); t != nil {
		r.Trouble = *t
	}
	return r
}

func (g *guesser) guess(ctx context.Context, n int64) {
	status, err := g.send(ctx, n)
	switch {
	case err == nil && status == http.StatusUnauthorized:
		g.refused.Add(1)
	case err == nil && status == http.StatusServiceUnavailable:
		g.busy.Add(1)
	default:
		g.others.Add(1)
		trouble := fmt.Sprintf("%d %v", status, err)
		g.trouble.CompareAndSwap(nil, &trouble)
	}
}

func (g *guesser) send(ctx context.Context, n int64) (status int, err error) {
	client := g.Client
	if g.Distributed {
		client = fmt.Sprintf("shc_%024x", n)
	}
	form := url.Values{"client_id": {client}, "client_secret": {"shs_" + strconv.FormatInt(n, 10)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if g.Distributed {
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("10.0.%d.%d", n>>8&0xff, n&0xff))
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, err
}
