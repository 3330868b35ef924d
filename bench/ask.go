package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// askSpec is the task of the process that sends requests to the API. The process reads it from
// stdin. It sends the requests in turn, and after the last one the first one again, until For
// is over.
type askSpec struct {
	Base    string        `json:"base"`
	Token   string        `json:"token"`
	Asks    []ask         `json:"asks"`
	Clients int           `json:"clients"`
	Rate    float64       `json:"rate"` // requests/s; 0: each client as fast as it is answered
	For     time.Duration `json:"for"`
}

// ask is one request; without a body it is a GET, else a POST.
type ask struct {
	Path string `json:"path"`
	Body string `json:"body,omitempty"`
}

// askResult is the result, which the process prints.
type askResult struct {
	Answered int64         `json:"answered"`
	Refused  int64         `json:"refused"` // answers 503; their latencies count too
	Failed   int64         `json:"failed"`
	Trouble  string        `json:"trouble,omitempty"` // the first failure
	Took     time.Duration `json:"took"`
	P50      int64         `json:"p50"` // µs from the planned send time until the answer is read
	P95      int64         `json:"p95"`
	P99      int64         `json:"p99"`
}

// clean returns an error unless every answer had the expected status or was a refusal.
func (r askResult) clean() error {
	switch {
	case r.Failed > 0:
		return fmt.Errorf("%d of %d requests failed: %s", r.Failed, r.Failed+r.Answered, r.Trouble)
	case r.Answered == 0:
		return errors.New("no request was answered")
	}
	return nil
}

func (r askResult) rate() float64 { return float64(r.Answered-r.Refused) / r.Took.Seconds() }

// askCmd is the process that sends the requests.
type askCmd struct{}

// Run runs the task that it reads from stdin.
func (askCmd) Run(ctx context.Context, term *console) error {
	var spec askSpec
	if err := json.NewDecoder(term.in).Decode(&spec); err != nil {
		return fmt.Errorf("read the spec: %w", err)
	}
	return json.NewEncoder(term.out).Encode(spec.run(ctx))
}

// askClient has the results of one client.
type askClient struct {
	latencies []uint32
	refused   int64
	failed    int64
	trouble   error
}

var errRefused = errors.New("503 Service Unavailable")

func (s *askSpec) run(ctx context.Context) askResult {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: s.Clients}}
	defer client.CloseIdleConnections()
	clients := make([]askClient, s.Clients)
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	turn := turns(ctx, start, s.Rate, s.For)
	for i := range clients {
		all.Go(func() {
			for at, ok := turn(); ok; at, ok = turn() {
				n := (next.Add(1) - 1) % int64(len(s.Asks))
				clients[i].note(at, s.send(ctx, client, s.Asks[n]))
			}
		})
	}
	all.Wait()
	return summarise(clients, time.Since(start))
}

func (a *askClient) note(at time.Time, err error) {
	switch {
	case errors.Is(err, errRefused):
		a.refused++
	case err != nil:
		a.failed++
		a.trouble = cmp.Or(a.trouble, err)
		return
	}
	a.latencies = append(a.latencies, uint32(max(0, time.Since(at).Microseconds()))) //nolint:gosec // up to 71 min
}

func summarise(clients []askClient, took time.Duration) askResult {
	r := askResult{Took: took}
	var latencies []uint32
	for _, c := range clients {
		latencies = append(latencies, c.latencies...)
		r.Refused += c.refused
		r.Failed += c.failed
		if c.trouble != nil && r.Trouble == "" {
			r.Trouble = c.trouble.Error()
		}
	}
	slices.Sort(latencies)
	r.Answered = int64(len(latencies))
	r.P50, r.P95, r.P99 = int64(quantile(latencies, 0.50)), int64(quantile(latencies, 0.95)), int64(quantile(latencies, 0.99))
	return r
}

// send sends one request and reads the answer to its end.
func (s *askSpec) send(ctx context.Context, client *http.Client, a ask) error {
	method := http.MethodGet
	if a.Body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, s.Base+a.Path, strings.NewReader(a.Body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	if a.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusServiceUnavailable:
		return errRefused
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s: %.300s", method, a.Path, resp.Status, answer)
	}
	return nil
}
