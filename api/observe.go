package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	maxRequestID = 128
	// maxHeaderBytes leaves room for two lists of 500 UUIDs and a certificate. net/http
	// reads some more, so that the request can be answered with 431.
	maxHeaderBytes = 64 << 10
)

// headerBytes estimates the bytes of a request's line and headers.
func headerBytes(r *http.Request) int {
	n := len(r.RequestURI)
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return n
}

// outer adds the request id and security headers for browsers to every answer. It answers HEAD like
// GET, without the body.
func (s *server) outer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !validID(id) {
			id = uuid.NewString()
		}
		h := w.Header()
		h.Set("X-Request-Id", id)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			// The request may have had a Content-Length too, which net/http removes. Such
			// a connection must be closed (RFC 9112 section 6.1).
			h.Set("Connection", "close")
		}
		if strings.HasPrefix(r.URL.Path, deprecatedPath) {
			deprecate(w, r)
		}
		if headerBytes(r) > maxHeaderBytes {
			s.fail(w, r, newProblem("HEADERS_TOO_LARGE", "Path, query and headers have more than %d bytes.", maxHeaderBytes))
			return
		}
		if r.Method == http.MethodHead { // the server itself drops the body
			get := *r
			get.Method = http.MethodGet
			r = &get
		}
		next.ServeHTTP(w, r)
	})
}

// validID reports whether id is 1 to 128 of [A-Za-z0-9._-].
func validID(id string) bool {
	return id != "" && len(id) <= maxRequestID && !strings.ContainsFunc(id, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-'
	})
}

// observe counts, times and logs the answers of next. It answers a panic with 500.
func (s *server) observe(route, method string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &recorder{ResponseWriter: w}
		started := s.opts.Now()
		defer s.delayEnd(r.Context(), rec) // counts the written bytes too if the client has disconnected
		defer func() { s.observed(rec, r, route, method, s.opts.Now().Sub(started)) }()
		defer s.recoverPanic(rec, r)
		next.ServeHTTP(rec, r)
	})
}

func (s *server) observed(rec *recorder, r *http.Request, route, method string, took time.Duration) {
	s.opts.Metrics.observe(route, method, rec.status, took)
	if s.opts.Logger.Enabled(r.Context(), slog.LevelDebug) {
		s.opts.Logger.LogAttrs(r.Context(), slog.LevelDebug, "request",
			slog.String("request_id", rec.Header().Get("X-Request-Id")), slog.String("http.route", route),
			slog.String("http.request.method", method), slog.Int("http.response.status_code", rec.status), slog.Float64("duration_ms", float64(took.Microseconds())/1000))
	}
}

func (s *server) recoverPanic(rec *recorder, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if cause == http.ErrAbortHandler { //nolint:errorlint // a handler that aborts its answer panics with this value
		panic(cause)
	}
	s.opts.Logger.LogAttrs(context.WithoutCancel(r.Context()), slog.LevelError, "request panicked",
		slog.String("request_id", rec.Header().Get("X-Request-Id")),
		slog.String("exception.message", fmt.Sprint(cause)), slog.String("exception.stacktrace", string(debug.Stack())))
	if rec.status != 0 {
		panic(http.ErrAbortHandler) // the answer has begun: close the connection
	}
	s.fail(rec, r, newProblem("INTERNAL_ERROR", "An unexpected error occurred."))
}

// recorder notes the status and the bytes of an answer, and the request.
type recorder struct {
	http.ResponseWriter
	status  int
	bytes   int64
	request *request // nil until the token is verified
	refused bool     // refused for its rate or its bytes
}

// WriteHeader notes the status.
func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Write answers 200 when no status was written.
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	n, err := r.ResponseWriter.Write(p)
	r.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// The labels of requests that match no operation.
const (
	noRoute  = "none"
	noMethod = "other"
)

// Metrics counts requests by route pattern, never by path. It is safe for
// concurrent use.
type Metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec

	throttled *prometheus.CounterVec
}

// NewMetrics registers spendhook_http_requests_total, _http_request_duration_seconds and
// _http_throttled_total with reg; a nil reg exports nothing.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_http_requests_total",
			Help: "Requests answered, by route pattern, method and status code.",
		}, []string{"route", "method", "code"}),
		seconds: promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
			Name:    "spendhook_http_request_duration_seconds",
			Help:    "Time to answer a request, by route pattern, method and class of the status code (2xx).",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 20},
		}, []string{"route", "method", "status"}),
		throttled: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_http_throttled_total",
			Help: "Requests refused with 429, by the limit that was exceeded.",
		}, []string{"limit"}),
	}
	for _, limit := range []string{limitClient, limitCompany} {
		m.throttled.WithLabelValues(limit)
	}
	return m
}

// initialize exports every documented answer with the value 0.
func (m *Metrics) initialize(all routes) {
	for route, operations := range all {
		for method, op := range operations {
			for _, code := range op.codes {
				m.seconds.WithLabelValues(route, method, code[:1]+"xx")
				m.requests.WithLabelValues(route, method, code)
			}
		}
	}
}

func (m *Metrics) observe(route, method string, code int, took time.Duration) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(code)).Inc()
	m.seconds.WithLabelValues(route, method, class(code)).Observe(took.Seconds())
}

// class returns the class of a status code, or "none" for an answer that was aborted before its status.
func class(code int) string {
	if code < 100 || code > 599 {
		return "none"
	}
	return strconv.Itoa(code/100) + "xx"
}
