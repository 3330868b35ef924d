package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// receiverProcess is a running receiver.
type receiverProcess struct {
	*process
	addresses
}

// receiverOptions are the options of a receiver. The zero value means http on 256 ports.
type receiverOptions struct {
	sameHost bool // all endpoints on one port
	tls      bool
	http2    bool // with TLS
}

func (o receiverOptions) args(c certificate) []string {
	var args []string
	if o.sameHost {
		args = append(args, "--same-host")
	}
	if o.tls {
		args = append(args, "--cert", c.cert, "--key", c.key)
	}
	if o.http2 {
		args = append(args, "--http2")
	}
	return args
}

// startReceiver runs a receiver that writes to dir/name.log.
func startReceiver(ctx context.Context, dir, name string, args ...string) (*receiverProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := startProcess(dir, name, self, append([]string{"worker", "receiver"}, args...)...)
	if err != nil {
		return nil, err
	}
	r := &receiverProcess{process: p}
	line, err := p.awaitLine(ctx, `"control"`)
	if err == nil {
		err = json.Unmarshal(line, &r.addresses)
	}
	if err != nil {
		p.Kill()
		return nil, err
	}
	return r, nil
}

// subscriptions returns each subscriptions for each company. Every one has the next endpoint.
func (r *receiverProcess) subscriptions(companies []int, each int) []subscription {
	var list []subscription
	for _, c := range companies {
		for i := range each {
			url := r.Endpoints[len(list)%len(r.Endpoints)]
			list = append(list, subscription{company: c, name: fmt.Sprintf("bench %d", i), url: url, event: eventType})
		}
	}
	return list
}

func (r *receiverProcess) reset(ctx context.Context, run int64) error {
	return r.post(ctx, fmt.Sprintf("/reset/%d", run), nil)
}

func (r *receiverProcess) mark(ctx context.Context) error { return r.post(ctx, "/mark", nil) }

// watch sets the events for tally.Watched, by their ids.
func (r *receiverProcess) watch(ctx context.Context, ids []string) error {
	return r.post(ctx, "/watch", []byte(strings.Join(ids, "\n")))
}

// set sets how the first n endpoints answer.
func (r *receiverProcess) set(ctx context.Context, n int, m mode) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return r.post(ctx, fmt.Sprintf("/mode/0/%d", n), body)
}

// tally returns the counts of all endpoints.
func (r *receiverProcess) tally(ctx context.Context) (tally, error) {
	return r.askTally(ctx, fmt.Sprintf("/tally/0/%d", len(r.Endpoints)))
}

// latency returns the tally of the endpoints from from up to, not including, to, with its
// quantiles. If expected is not 0, missing deliveries count in the quantiles.
func (r *receiverProcess) latency(ctx context.Context, from, to int, expected int64) (tally, error) {
	return r.askTally(ctx, fmt.Sprintf("/tally/%d/%d?latency=1&expected=%d", from, to, expected))
}

func (r *receiverProcess) askTally(ctx context.Context, path string) (t tally, err error) {
	text, err := get(ctx, r.Control+path)
	if err != nil {
		return t, err
	}
	return t, json.Unmarshal(text, &t)
}

func (r *receiverProcess) post(ctx context.Context, path string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Control+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	_, err = do(req)
	return err
}
