// Package webhook makes delivery attempts: one signed POST each. It holds the
// connections and the classes of results.
package webhook

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"spendhook/internal/egress"
)

// ErrorClass says how an attempt went wrong; a closed set, also used as the
// metric label "outcome" through Outcome.
type ErrorClass string

// The error classes. All but ClassNone and ClassOversized are failures.
const (
	ClassNone           ErrorClass = ""                   // a 2xx answer
	ClassOversized      ErrorClass = "oversized_response" // a 2xx whose body was cut at 16 KiB: delivered, but worth a look
	ClassRedirect       ErrorClass = "http_3xx"           // never followed
	ClassHTTP4xx        ErrorClass = "http_4xx"           // but 410 and 429
	ClassGone           ErrorClass = "http_410"
	ClassTooMany        ErrorClass = "http_429"
	ClassHTTP5xx        ErrorClass = "http_5xx"
	ClassProtocol       ErrorClass = "protocol"        // the answer is not proper HTTP, or its header is too large
	ClassTimeout        ErrorClass = "timeout"         // no complete answer within the attempt's time
	ClassConnectTimeout ErrorClass = "connect_timeout" // no TCP connection within its time
	ClassConnect        ErrorClass = "connect"         // connection refused, or no route
	ClassDNS            ErrorClass = "dns"             // the name does not resolve
	ClassTLS            ErrorClass = "tls"             // handshake failed or took too long, or a bad certificate
	ClassReset          ErrorClass = "reset"           // the connection ended before the answer
	ClassRefusedAddress ErrorClass = "refused_address" // the egress guard refused the address
	ClassProxy          ErrorClass = "proxy"           // the egress proxy was out of reach, or makes no sense
	ClassProxyRefused   ErrorClass = "proxy_refused"   // the egress proxy made no connection: it may not, could not, or wants other credentials
	ClassAborted        ErrorClass = "aborted"         // we stopped it ourselves: counts as no attempt
	ClassLocked         ErrorClass = "locked"          // a secret of the subscriber does not open: nothing was sent, counts as no attempt
	ClassPanic          ErrorClass = "panic"           // the attempt panicked: an error in our code
)

// outcomeSuccess is the outcome label of ClassNone.
const outcomeSuccess = "success"

// ErrorClasses returns every class, for metrics that start at zero.
func ErrorClasses() []ErrorClass {
	return []ErrorClass{
		ClassNone, ClassOversized, ClassRedirect, ClassHTTP4xx, ClassGone, ClassTooMany, ClassHTTP5xx,
		ClassProtocol, ClassTimeout, ClassConnectTimeout, ClassConnect, ClassDNS, ClassTLS, ClassReset,
		ClassRefusedAddress, ClassProxy, ClassProxyRefused, ClassAborted, ClassLocked, ClassPanic,
	}
}

// Outcome is the class as a metric label value, never empty.
func (c ErrorClass) Outcome() string {
	if c == ClassNone {
		return outcomeSuccess
	}
	return string(c)
}

// Unreachable reports whether no HTTP answer came because of the endpoint or
// the way to it: what a circuit breaker counts. A bad status is an answer.
func (c ErrorClass) Unreachable() bool {
	switch c {
	case ClassTimeout, ClassConnectTimeout, ClassConnect, ClassDNS, ClassTLS, ClassReset, ClassProxy, ClassProxyRefused:
		return true
	case ClassNone, ClassOversized, ClassRedirect, ClassHTTP4xx, ClassGone, ClassTooMany,
		ClassHTTP5xx, ClassProtocol, ClassRefusedAddress, ClassAborted, ClassLocked, ClassPanic:
	}
	return false
}

// Result is what came of one attempt.
type Result struct {
	StartedAt    time.Time
	Duration     time.Duration // until the answer was read, or the failure
	Timing       Timing
	StatusCode   int // 0 when no answer came
	Class        ErrorClass
	RetryAfter   time.Duration // as asked by a 429 or 503, unclamped; 0: not asked
	Sent         http.Header   // what the request was made with, secrets included; nil when none was
	ResponseBody []byte        // of a failure: the first 1 KiB; nil when empty, and of a success
	Err          error         // what happened below HTTP, for logs only: it may name internal addresses
}

// Success reports whether the receiver acknowledged with a 2xx.
func (r Result) Success() bool { return r.Class == ClassNone || r.Class == ClassOversized }

// Aborted reports whether the attempt was stopped by its own caller, or not even
// begun, and so counts for nothing.
func (r Result) Aborted() bool { return r.Class == ClassAborted || r.Class == ClassLocked }

// classifyStatus is the class of an answer by its status code.
func classifyStatus(code int) ErrorClass {
	switch {
	case code == http.StatusGone:
		return ClassGone
	case code == http.StatusTooManyRequests:
		return ClassTooMany
	case code < 200 || code > 599: // 101, or none that HTTP knows
		return ClassProtocol
	case code < 300:
		return ClassNone
	case code < 400:
		return ClassRedirect
	case code < 500:
		return ClassHTTP4xx
	default:
		return ClassHTTP5xx
	}
}

// errAttemptTimeout is the cancel cause of an attempt that used up its time.
var errAttemptTimeout = errors.New("attempt timed out")

// classifyError is the class of a transport error; ctx is the attempt's own.
// What has no type, from a peer that did connect, is a breach of the protocol:
// net/http reports malformed answers with plain errors.
func classifyError(ctx context.Context, err error) ErrorClass {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, errAttemptTimeout) {
			return ClassTimeout
		}
		return ClassAborted
	}
	var dns *net.DNSError
	var handshake *handshakeError
	var op *net.OpError
	var proxy *egress.ProxyError
	switch {
	case errors.Is(err, egress.ErrRefused):
		return ClassRefusedAddress
	case errors.As(err, &proxy):
		return classifyProxy(proxy)
	case errors.As(err, &dns):
		return ClassDNS
	case errors.As(err, &handshake):
		return ClassTLS
	case errors.As(err, &op):
		return classifyOp(op)
	case isReset(err):
		return ClassReset
	default:
		return ClassProtocol
	}
}

// classifyProxy takes a proxy that answers in no time for a receiver that does
// not: the proxy is there, and is still trying.
func classifyProxy(err *egress.ProxyError) ErrorClass {
	switch {
	case err.Status != 0:
		return ClassProxyRefused
	case err.Waiting:
		return ClassConnectTimeout
	default:
		return ClassProxy
	}
}

// classifyOp sorts errors of sockets: of the dial, of TLS alerts after the
// handshake (a required client certificate, say), and of reads and writes.
func classifyOp(op *net.OpError) ErrorClass {
	switch {
	case op.Op == "dial" && op.Timeout():
		return ClassConnectTimeout
	case op.Op == "dial":
		return ClassConnect
	case op.Op == "remote error", op.Op == "local error":
		return ClassTLS
	case op.Timeout():
		return ClassTimeout
	default:
		return ClassReset
	}
}

// isReset tells connections that ended early, by TCP, TLS or an HTTP/2 stream.
func isReset(err error) bool {
	var stream streamError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.As(err, &stream)
}

// streamError has the shape of x/net/http2.StreamError: net/http's own, which
// is not exported, converts itself to any struct of that shape.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "HTTP/2 stream reset" }

// handshakeError marks whatever went wrong in a TLS handshake.
type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "TLS handshake: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// parseRetryAfter reads a Retry-After field (RFC 9110, 10.2.3): seconds, or a
// date. What is neither, or lies in the past, is 0. Absurd numbers stop at 68
// years, well inside a Duration.
func parseRetryAfter(value string, now time.Time) time.Duration {
	seconds, err := strconv.ParseUint(value, 10, 31)
	if err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, at.Sub(now))
}
