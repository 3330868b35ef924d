package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// receiverCmd is the process that receives the deliveries. Each endpoint has a port of its own, or
// all have the same one. One more port is for the controls.
type receiverCmd struct {
	Endpoints int           `default:"256"`
	SameHost  bool          `help:"All endpoints on one port, each with a path of its own."`
	Cert      string        `help:"File of the certificate; without it the endpoints are http."`
	Key       string        `help:"File of its private key."`
	HTTP2     bool          `name:"http2" help:"Offer HTTP/2."`
	Life      time.Duration `default:"6h" help:"How long to run at most."`
}

// receiver is the state of the receiving process.
type receiver struct {
	run       atomic.Int64                   // events of other runs are not counted
	mark      atomic.Int64                   // unix µs; see tally.AfterMark
	watched   atomic.Pointer[map[int64]bool] // numbers of events; see tally.Watched
	opened    atomic.Int64                   // connections to endpoints, since the start
	began     atomic.Int64                   // unix µs of the last reset
	endpoints []*endpoint
}

// addresses has the URLs of the receiver, which prints them when it listens.
type addresses struct {
	Control   string   `json:"control"`
	Endpoints []string `json:"endpoints"`
}

// Run serves until ctx ends or Life is over.
func (c *receiverCmd) Run(ctx context.Context, term *console) error {
	ctx, cancel := context.WithTimeout(ctx, c.Life)
	defer cancel()
	r := &receiver{}
	for range c.Endpoints {
		r.endpoints = append(r.endpoints, newEndpoint(r))
	}
	r.reset(0)
	failed := make(chan error, c.Endpoints+1)
	at, err := c.serveAll(ctx, r, failed)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(term.out).Encode(at); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// serveAll serves the endpoints and the controls.
func (c *receiverCmd) serveAll(ctx context.Context, r *receiver, failed chan<- error) (at addresses, err error) {
	hosts := []http.Handler{r}
	if !c.SameHost {
		hosts = hosts[:0]
		for _, e := range r.endpoints {
			hosts = append(hosts, e)
		}
	}
	var bases []string
	for _, h := range hosts {
		base, err := c.serve(ctx, r, h, failed)
		if err != nil {
			return at, err
		}
		bases = append(bases, base)
	}
	for i := range r.endpoints {
		at.Endpoints = append(at.Endpoints, fmt.Sprintf("%s/hook/%d", bases[i%len(bases)], i))
	}
	control, err := serve(ctx, &http.Server{Handler: r.controls(), ReadHeaderTimeout: time.Minute}, failed, "", "")
	at.Control = "http://" + control
	return at, err
}

// serve serves endpoints on a port of their own and returns its URL.
func (c *receiverCmd) serve(ctx context.Context, r *receiver, h http.Handler, failed chan<- error) (base string, err error) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, Protocols: protocols(c.HTTP2), ConnState: r.countConn}
	address, err := serve(ctx, s, failed, c.Cert, c.Key)
	if c.Cert == "" {
		return "http://" + address, err
	}
	return "https://" + address, err
}

// serve starts s on a free port, with TLS if there is a certificate.
func serve(ctx context.Context, s *http.Server, failed chan<- error, cert, key string) (address string, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		if cert == "" {
			failed <- s.Serve(l)
			return
		}
		failed <- s.ServeTLS(l, cert, key)
	}()
	return l.Addr().String(), nil
}

func (r *receiver) countConn(_ net.Conn, state http.ConnState) {
	if state == http.StateNew {
		r.opened.Add(1)
	}
}

// ServeHTTP receives one delivery to the endpoint in the path.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	i, err := strconv.Atoi(strings.TrimPrefix(req.URL.Path, "/hook/"))
	if err != nil || i < 0 || i >= len(r.endpoints) {
		http.NotFound(w, req)
		return
	}
	r.endpoints[i].ServeHTTP(w, req)
}

// mode is how an endpoint answers.
type mode struct {
	Hang  bool          `json:"hang"`  // no answer until the caller's time-out
	Delay time.Duration `json:"delay"` // of every answer
	Fail  float64       `json:"fail"`  // the share of deliveries that is answered 500, at random
}

// longestHang is how long a hanging handler runs at most.
const longestHang = 2 * time.Minute

// ServeHTTP receives one delivery.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	now := time.Now()
	_, _ = io.Copy(io.Discard, io.LimitReader(req.Body, 1<<20))
	m := e.mode.Load()
	e.attempts.Add(1)
	switch {
	case m.Hang:
		_ = pause(req.Context(), longestHang)
		return
	case m.Delay > 0 && pause(req.Context(), m.Delay) != nil:
		return
	case m.Fail > 0 && rand.Float64() < m.Fail: //nolint:gosec // chance, not secrecy
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if id, ok := parseEventID(req.Header.Get("webhook-id")); ok && id.run == e.of.run.Load() {
		e.take(id, now, e.of.mark.Load(), (*e.of.watched.Load())[id.n])
	}
	w.WriteHeader(http.StatusNoContent)
}

// controls handles the requests of the bench to the receiver.
func (r *receiver) controls() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reset/{run}", func(w http.ResponseWriter, req *http.Request) {
		run, err := strconv.ParseInt(req.PathValue("run"), 10, 64)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.reset(run)
	})
	mux.HandleFunc("POST /mark", func(http.ResponseWriter, *http.Request) { r.mark.Store(time.Now().UnixMicro()) })
	mux.HandleFunc("POST /watch", r.watch)
	mux.HandleFunc("POST /mode/{from}/{to}", r.setMode)
	mux.HandleFunc("GET /tally/{from}/{to}", r.getTally)
	return mux
}

// watch reads the ids of the events to watch, one a line.
func (r *receiver) watch(w http.ResponseWriter, req *http.Request) {
	text, err := io.ReadAll(io.LimitReader(req.Body, 64<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	watched := map[int64]bool{}
	for line := range strings.FieldsSeq(string(text)) {
		if id, ok := parseEventID(line); ok && id.run == r.run.Load() {
			watched[id.n] = true
		}
	}
	r.watched.Store(&watched)
}

// reset sets the counts to zero and begins a run. The modes stay.
func (r *receiver) reset(run int64) {
	r.run.Store(run)
	r.mark.Store(0)
	r.watched.Store(&map[int64]bool{})
	r.began.Store(time.Now().UnixMicro())
	for _, e := range r.endpoints {
		e.reset()
	}
}

func (r *receiver) setMode(w http.ResponseWriter, req *http.Request) {
	var m mode
	list, err := r.between(req)
	if err = errors.Join(err, json.NewDecoder(req.Body).Decode(&m)); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, e := range list {
		e.mode.Store(&m)
	}
}

func (r *receiver) getTally(w http.ResponseWriter, req *http.Request) {
	list, err := r.between(req)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	expected, _ := strconv.ParseInt(req.FormValue("expected"), 10, 64)
	_ = json.NewEncoder(w).Encode(r.tallyOf(list, req.FormValue("latency") != "", expected))
}

// between returns the endpoints from {from} up to, not including, {to}.
func (r *receiver) between(req *http.Request) ([]*endpoint, error) {
	from, err := strconv.Atoi(req.PathValue("from"))
	to, err2 := strconv.Atoi(req.PathValue("to"))
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if from < 0 || from > to || to > len(r.endpoints) {
		return nil, fmt.Errorf("no endpoints %d to %d", from, to)
	}
	return r.endpoints[from:to], nil
}
