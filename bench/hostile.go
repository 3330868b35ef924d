package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// hostileSpec is the task of the process that attacks with a company's own token. The process
// reads it from stdin, and makes all attacks at once until For is over.
type hostileSpec struct {
	Address    string        `json:"address"` // of the API, host and port
	Token      string        `json:"token"`
	Readers    int           `json:"readers"`    // clients that read the largest page of events again and again
	Unfinished int           `json:"unfinished"` // connections, each with an unfinished body
	Jobs       int           `json:"jobs"`       // clients that start dry-run recoveries again and again
	Subscriber string        `json:"subscriber"` // of these recoveries
	For        time.Duration `json:"for"`
}

// hostileResult is the result, which the process prints.
type hostileResult struct {
	Pages   int64  `json:"pages"`             // that were read
	Bytes   int64  `json:"bytes"`             // of these pages
	Held    int64  `json:"held"`              // unfinished bodies until the daemon's time-out
	Jobs    int64  `json:"jobs"`              // dry runs that were accepted
	Refused int64  `json:"refused"`           // answers 429 and 503
	Others  int64  `json:"others"`            // other answers, and failed requests
	Trouble string `json:"trouble,omitempty"` // the first of the others
}

// hostileCmd is the process that attacks.
type hostileCmd struct{}

// Run runs the task that it reads from stdin.
func (hostileCmd) Run(ctx context.Context, term *console) error {
	var spec hostileSpec
	if err := json.NewDecoder(term.in).Decode(&spec); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	if err := lowerPriority(); err != nil {
		return err
	}
	return json.NewEncoder(term.out).Encode(spec.run(ctx))
}

// attack is a run of the attacks.
type attack struct {
	*hostileSpec
	client *http.Client

	mu sync.Mutex
	hostileResult
}

func (s *hostileSpec) run(ctx context.Context) hostileResult {
	ctx, cancel := context.WithTimeout(ctx, s.For)
	defer cancel()
	transport := &http.Transport{MaxIdleConnsPerHost: s.Readers + s.Jobs}
	defer transport.CloseIdleConnections()
	a := &attack{hostileSpec: s, client: &http.Client{Transport: transport}}
	var all sync.WaitGroup
	repeat := func(n int, what func(context.Context)) {
		for range n {
			all.Go(func() {
				for ctx.Err() == nil {
					what(ctx)
				}
			})
		}
	}
	repeat(s.Readers, func(ctx context.Context) { a.ask(ctx, http.MethodGet, "/api/v1/events?size=100", "", a.read) })
	repeat(s.Jobs, func(ctx context.Context) {
		a.ask(ctx, http.MethodPost, "/api/v1/subscribers/"+s.Subscriber+"/recover", `{"since":"`+time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)+`","dryRun":true}`,
			func(int64) { a.hostileResult.Jobs++ })
	})
	repeat(s.Unfinished, a.holdBody)
	all.Wait()
	return a.hostileResult
}

func (a *attack) read(bytes int64) { a.Pages, a.Bytes = a.Pages+1, a.Bytes+bytes }

// ask sends one request and counts its answer. For an answer 2xx it calls done.
func (a *attack) ask(ctx context.Context, method, path, body string, done func(bytes int64)) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+a.Address+path, strings.NewReader(body))
	if err != nil {
		a.note(ctx, 0, err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		a.note(ctx, 0, err)
		return
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode/100 == 2 {
		a.mu.Lock()
		defer a.mu.Unlock()
		done(n)
		return
	}
	a.note(ctx, resp.StatusCode, err)
}

// note counts an answer that is not 2xx. It ignores requests that the end of the run cuts off.
func (a *attack) note(ctx context.Context, status int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err == nil && (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests):
		a.Refused++
	default:
		a.Others++
		if a.Trouble == "" {
			a.Trouble = fmt.Sprintf("%d %v", status, err)
		}
	}
}

// The sizes of an unfinished body, which is sent in pieces. The daemon accepts 8 MiB.
const (
	announced = 8 << 20
	piece     = 64 << 10
)

// holdBody begins a POST, sends its body except for the last piece, and waits for an answer or for
// the end of the run.
func (a *attack) holdBody(ctx context.Context) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.Address)
	if err != nil {
		a.note(ctx, 0, err)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	fmt.Fprintf(conn, "POST /api/v1/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n[",
		a.Address, a.Token, announced)
	filler := []byte(strings.Repeat(" ", piece))
	go func() {
		for sent := 0; sent < announced-2*piece; sent += piece {
			if _, err := conn.Write(filler); err != nil {
				return
			}
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		resp.Body.Close()
	}
	switch {
	case err != nil, resp.StatusCode == http.StatusRequestTimeout: // the daemon's time-out of a request, or the end of the run
		a.mu.Lock()
		defer a.mu.Unlock()
		a.Held++
	default:
		a.note(ctx, resp.StatusCode, nil)
	}
}
