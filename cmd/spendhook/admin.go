package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"spendhook/audit"
	"spendhook/internal/redisx"
)

// errStarting is the reason that /readyz gives until the daemon accepts events.
var errStarting = errors.New("the daemon is starting")

// admin serves health, readiness, metrics and profiles on a listener of its own.
type admin struct {
	check    func(context.Context) redisx.Status
	warnings func() []string // problems that do not make the daemon unready
	registry *prometheus.Registry
	profiles bool                                                   // whether profiles are served
	reload   func(by audit.Actor, address string) (reloaded, error) // nil: this listener has no reload
	unready  atomic.Pointer[func() error]                           // returns why the daemon itself is not ready
}

func newAdmin(check func(context.Context) redisx.Status, warnings func() []string, registry *prometheus.Registry) *admin {
	a := &admin{check: check, warnings: warnings, registry: registry}
	a.setUnready(errStarting)
	return a
}

func (a *admin) setUnready(reason error) { a.unready.Store(new(func() error { return reason })) }

func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range a.routes() {
		mux.Handle(pattern, handler)
	}
	return mux
}

// loopbackOnly refuses requests whose Host header is neither localhost nor a loopback address.
// This stops DNS rebinding: the host name of a web page can resolve to loopback, but the
// browser sends that name as Host.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip, err := netip.ParseAddr(strings.Trim(host, "[]")); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "this listener answers only requests to localhost", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// routes returns the handlers of the listener. They need no authentication.
func (a *admin) routes() map[string]http.Handler {
	routes := map[string]http.Handler{
		"GET /healthz": http.HandlerFunc(healthz),
		"GET /readyz":  http.HandlerFunc(a.readyz),
		"GET /metrics": promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{EnableOpenMetrics: true}),
	}
	if a.reload != nil {
		routes["POST /-/reload"] = sameSite(a.reloadSettings)
	}
	if a.profiles { // without cmdline, because a flag may contain the password of Redis
		routes["GET /debug/pprof/"] = sameSite(pprof.Index)
		routes["GET /debug/pprof/profile"] = sameSite(pprof.Profile)
		routes["GET /debug/pprof/symbol"] = sameSite(pprof.Symbol)
		routes["GET /debug/pprof/trace"] = sameSite(pprof.Trace)
	}
	return routes
}

// sameSite refuses requests that a web page of another site makes in a browser, such as profiles, which
// cost a core for as long as they say.
func sameSite(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		if r.Header.Get("Origin") != "" || site != "" && site != "none" && site != "same-origin" {
			http.Error(w, "a web page may not do this", http.StatusForbidden)
			return
		}
		next(w, r)
	})
}

// reloadSettings handles POST /-/reload.
func (a *admin) reloadSettings(w http.ResponseWriter, r *http.Request) {
	user, _, _ := r.BasicAuth() // the listener has checked the password, if it needs one
	address, _, _ := net.SplitHostPort(r.RemoteAddr)
	done, err := a.reload(audit.Actor{Kind: audit.Admin, Subject: cmp.Or(user, "-")}, address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	writeJSON(w, http.StatusOK, done)
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

func healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready    bool     `json:"ready"`
	Problems []string `json:"problems"`
	Warnings []string `json:"warnings"`
}

// readyz answers 200 while the daemon can accept events, in a Cluster at least those of one shard.
// Otherwise it answers 503 with the reasons.
func (a *admin) readyz(w http.ResponseWriter, r *http.Request) {
	status := a.check(r.Context())
	answer := readiness{Problems: status.Problems, Warnings: slices.Concat(status.Down, status.Warnings, a.warnings())}
	if reason := (*a.unready.Load())(); reason != nil {
		answer.Problems = append(answer.Problems, reason.Error())
	}
	answer.Ready = len(answer.Problems) == 0
	w.Header().Set("Cache-Control", "no-store")
	code := http.StatusOK
	if !answer.Ready {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, answer)
}
