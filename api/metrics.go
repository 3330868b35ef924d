package api

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The labels of what matched no operation.
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
// _http_throttled_total with reg; nil counts unseen.
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

// initialize shows every documented answer as zero.
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

// class is the class of a status code; "none" for an answer that was cut off before
// it had one.
func class(code int) string {
	if code < 100 || code > 599 {
		return "none"
	}
	return strconv.Itoa(code/100) + "xx"
}
