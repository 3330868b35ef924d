package attempt

import (
	"net/http"
	"net/netip"
	"time"
)

// ErrorClass is the class of a result, from a closed set. Outcome is its value of the metric
// label "outcome".
type ErrorClass string

// The error classes. All but ClassNone and ClassOversized are failures.
const (
	ClassNone           ErrorClass = ""                   // a 2xx answer
	ClassOversized      ErrorClass = "oversized_response" // a 2xx answer with a body of more than 16 KiB: delivered
	ClassRedirect       ErrorClass = "http_3xx"           // never followed
	ClassHTTP4xx        ErrorClass = "http_4xx"           // but 410 and 429
	ClassGone           ErrorClass = "http_410"
	ClassTooMany        ErrorClass = "http_429"
	ClassStopped        ErrorClass = "stopped" // the answer asked for no more attempts of this delivery
	ClassHTTP5xx        ErrorClass = "http_5xx"
	ClassProtocol       ErrorClass = "protocol"        // the answer is not proper HTTP, or its header is too large
	ClassTimeout        ErrorClass = "timeout"         // no status within the attempt's time, or no answer to the TLS handshake or to a ping of HTTP/2 in time
	ClassConnectTimeout ErrorClass = "connect_timeout" // no TCP connection within its time
	ClassConnect        ErrorClass = "connect"         // connection refused, or no route
	ClassDNS            ErrorClass = "dns"             // the name does not resolve
	ClassTLS            ErrorClass = "tls"             // the handshake failed, also for a bad certificate, or an alert refused it
	ClassReset          ErrorClass = "reset"           // the connection ended before the answer
	ClassRefusedAddress ErrorClass = "refused_address" // the egress guard refused the address
	ClassProxy          ErrorClass = "proxy"           // the egress proxy was unreachable, or its answer is invalid
	ClassProxyRefused   ErrorClass = "proxy_refused"   // the egress proxy refused to connect, failed to connect, or rejected the credentials
	ClassToken          ErrorClass = "token"           // no access token: its endpoint was unreachable or too slow, or its answer is invalid
	ClassTokenRefused   ErrorClass = "token_refused"   // the token endpoint answered with an error
	ClassAborted        ErrorClass = "aborted"         // this daemon cancelled the attempt: not counted
	ClassLocked         ErrorClass = "locked"          // a secret or key cannot be decrypted, or does not sign: nothing was sent, not counted
	ClassTransform      ErrorClass = "transform"       // the subscriber's transform failed on the event: nothing was sent
	ClassPanic          ErrorClass = "panic"           // the attempt panicked: an error in this daemon
)

// ErrorClasses returns every class, for metrics that start at zero.
func ErrorClasses() []ErrorClass {
	return []ErrorClass{
		ClassNone, ClassOversized, ClassRedirect, ClassHTTP4xx, ClassGone, ClassTooMany, ClassStopped, ClassHTTP5xx,
		ClassProtocol, ClassTimeout, ClassConnectTimeout, ClassConnect, ClassDNS, ClassTLS, ClassReset,
		ClassRefusedAddress, ClassProxy, ClassProxyRefused, ClassToken, ClassTokenRefused, ClassAborted, ClassLocked, ClassTransform, ClassPanic,
	}
}

// Outcome is the class as a metric label value, never empty.
func (c ErrorClass) Outcome() string {
	if c == ClassNone {
		return "success"
	}
	return string(c)
}

// Unreachable reports whether no HTTP answer came because of the endpoint, its token endpoint or the network. The
// circuit breaker counts these. An error status is an answer.
func (c ErrorClass) Unreachable() bool {
	switch c {
	case ClassTimeout, ClassConnectTimeout, ClassConnect, ClassDNS, ClassTLS, ClassReset, ClassProxy, ClassProxyRefused,
		ClassToken, ClassTokenRefused:
		return true
	default:
		return false
	}
}

// Result is the result of one attempt.
type Result struct {
	StartedAt    time.Time
	Duration     time.Duration // until the answer was read, or the failure
	Timing       Timing
	URLVersion   int        // of the subscriber's URL
	Address      netip.Addr // that was reached; zero: none, or by the egress proxy
	StatusCode   int        // 0 when no answer came
	Class        ErrorClass
	RetryAfter   time.Duration // as asked by a 429 or 503, unclamped; 0: not asked
	Sent         http.Header   // headers of the request, secrets included; nil when no request was sent
	Waited       Waited        // before the attempt
	ResponseBody []byte        // of a failure: the first 1 KiB; nil when empty, and of a success
	Err          error         // for logs only, as it may name internal addresses; but for ClassTransform
}

// Success reports whether the receiver acknowledged with a 2xx.
func (r Result) Success() bool { return r.Class == ClassNone || r.Class == ClassOversized }

// NothingSent reports whether the result says nothing about the endpoint.
func (r Result) NothingSent() bool { return r.Aborted() || r.Class == ClassTransform }

// Aborted reports whether the caller cancelled the attempt or the attempt never started. Such
// an attempt is not counted.
func (r Result) Aborted() bool { return r.Class == ClassAborted || r.Class == ClassLocked }
