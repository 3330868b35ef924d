// Package webhook makes delivery attempts, one signed POST each, and classifies their results.
// It owns the connections to receivers. It knows neither queues nor the schedule of retries.
package webhook

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/internal/egress"
)

// headerDelivery is the header of an answer with which a receiver ends the attempts of this delivery, by the value stop.
const headerDelivery = "webhook-delivery"

// classifyAnswer is the class of an answer. A failure with a status of stopOn ends the attempts, and one that says so.
func classifyAnswer(resp *http.Response, stopOn []int) attempt.ErrorClass {
	class := classifyStatus(resp.StatusCode)
	switch class {
	case attempt.ClassNone, attempt.ClassGone, attempt.ClassProtocol:
		return class
	default:
	}
	if slices.Contains(stopOn, resp.StatusCode) || strings.EqualFold(resp.Header.Get(headerDelivery), "stop") {
		return attempt.ClassStopped
	}
	return class
}

func classifyStatus(code int) attempt.ErrorClass {
	switch {
	case code == http.StatusGone:
		return attempt.ClassGone
	case code == http.StatusTooManyRequests:
		return attempt.ClassTooMany
	case code < 200 || code > 599: // 101, or no status code of HTTP
		return attempt.ClassProtocol
	case code < 300:
		return attempt.ClassNone
	case code < 400:
		return attempt.ClassRedirect
	case code < 500:
		return attempt.ClassHTTP4xx
	default:
		return attempt.ClassHTTP5xx
	}
}

// errAttemptTimeout is the cancel cause of an attempt that timed out.
var errAttemptTimeout = errors.New("attempt timed out")

// classifyError is the class of a transport error; ctx is the attempt's context. Errors
// without a known type are protocol errors: net/http reports malformed answers as plain
// errors.
func classifyError(ctx context.Context, err error) attempt.ErrorClass {
	if cause := context.Cause(ctx); cause != nil {
		if errors.Is(cause, errAttemptTimeout) {
			return attempt.ClassTimeout
		}
		return attempt.ClassAborted
	}
	var dns *net.DNSError
	var handshake *handshakeError
	var op *net.OpError
	var proxy *egress.ProxyError
	switch {
	case errors.Is(err, egress.ErrRefused):
		return attempt.ClassRefusedAddress
	case errors.As(err, &proxy):
		return classifyProxy(proxy)
	case errors.As(err, &dns):
		return attempt.ClassDNS
	case errors.As(err, &handshake) && errors.Is(err, context.DeadlineExceeded): // never answered
		return attempt.ClassTimeout
	case errors.As(err, &handshake):
		return attempt.ClassTLS
	case errors.As(err, &op):
		return classifyOp(op)
	case strings.Contains(err.Error(), "http2: client connection lost"): // a ping was not answered
		return attempt.ClassTimeout
	case isReset(err):
		return attempt.ClassReset
	default:
		return attempt.ClassProtocol
	}
}

// classifyProxy is the class of a proxy error. A proxy that accepts the connection but does
// not answer in time is probably still connecting: the receiver gets the timeout class.
func classifyProxy(err *egress.ProxyError) attempt.ErrorClass {
	switch {
	case err.Status != 0:
		return attempt.ClassProxyRefused
	case err.Waiting:
		return attempt.ClassConnectTimeout
	default:
		return attempt.ClassProxy
	}
}

// classifyOp returns the class of a socket error: of a dial, a read, a write, or a TLS alert
// after the handshake (for example because of a missing client certificate).
func classifyOp(op *net.OpError) attempt.ErrorClass {
	switch {
	case op.Op == "dial" && op.Timeout():
		return attempt.ClassConnectTimeout
	case op.Op == "dial":
		return attempt.ClassConnect
	case op.Op == "remote error", op.Op == "local error":
		return attempt.ClassTLS
	case op.Timeout():
		return attempt.ClassTimeout
	default:
		return attempt.ClassReset
	}
}

// isReset reports whether the connection ended early, by TCP, TLS or HTTP/2. Most errors of HTTP/2
// connections, and that of a new connection which the receiver closes before the request, have no type that
// net/http exports, so their text is compared.
func isReset(err error) bool {
	var stream streamError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		strings.Contains(err.Error(), "http: server closed idle connection") ||
		strings.Contains(err.Error(), "GOAWAY") || strings.Contains(err.Error(), "http2: client conn") ||
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

type handshakeError struct{ err error }

func (e *handshakeError) Error() string { return "TLS handshake: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// parseRetryAfter reads a Retry-After field (RFC 9110, 10.2.3): seconds, or a date. It returns 0
// for any other text and for a past date. It limits the seconds to 2^31-1, which a Duration can hold.
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
