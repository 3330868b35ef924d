package client

import (
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/pause"
)

const (
	keyHeader = "Idempotency-Key"
	// maxAnswer bounds an answer in JSON, in bytes. The reader of a stream bounds the stream.
	maxAnswer = 16 << 20
)

// sender sends requests with a token and retries them where that is safe. An answer other
// than 2xx is an error. It is safe for concurrent use.
type sender struct {
	http     *http.Client
	tokens   tokenSource // nil: none
	agent    string
	retryFor time.Duration
	retrying func(attempts int, err error) // nil: not called
	now      func() time.Time
}

// Do implements HttpRequestDoer. The caller closes the body of the answer. A
// refused token is renewed once, since nothing was done with it.
func (s *sender) Do(req *http.Request) (*http.Response, error) {
	req.Header.Set("User-Agent", s.agent)
	if req.Method == http.MethodPost && req.Header.Get(keyHeader) == "" {
		req.Header.Set(keyHeader, uuid.NewString())
	}
	deadline, renewed := s.now().Add(s.retryFor), false
	for attempt := 0; ; attempt++ {
		token, err := s.authorize(req)
		if err != nil {
			return nil, err
		}
		resp, err := s.once(req)
		if err == nil {
			return resp, nil
		}
		again := !renewed && s.tokens != nil && rewindable(req) && hasStatus(err, http.StatusUnauthorized) && s.tokens.renew(token)
		renewed = renewed || again
		if !again && !s.wait(req, attempt, deadline, err) {
			return nil, err
		}
		if err := rewind(req); err != nil {
			return nil, err
		}
	}
}

func (s *sender) authorize(req *http.Request) (string, error) {
	if s.tokens == nil {
		return "", nil
	}
	token, err := s.tokens.token(req.Context())
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return token, err
}

func (s *sender) once(req *http.Request) (*http.Response, error) {
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, newError(resp, s.now())
	}
	switch mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
	case mediaType == "application/json":
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	case mediaType != "application/x-ndjson" && resp.StatusCode != http.StatusNoContent:
		resp.Body.Close()
		return nil, &Error{Status: resp.StatusCode, Code: "HTTP_ERROR", Detail: "the answer is not from a Spendhook daemon; check the address"}
	}
	return resp, nil
}

// wait pauses before the next attempt. It returns false when the request is not retried.
func (s *sender) wait(req *http.Request, attempt int, deadline time.Time, err error) bool {
	if !mayRetry(req, err) || !rewindable(req) {
		return false
	}
	wait := 200 * time.Millisecond << min(attempt, 6)
	wait = min(wait, 10*time.Second)
	wait = wait/2 + rand.N(wait/2) //nolint:gosec // jitter, not a secret
	if e, ok := errors.AsType[*Error](err); ok {
		wait = max(wait, e.RetryAfter)
	}
	if s.now().Add(wait).After(deadline) {
		return false
	}
	if s.retrying != nil {
		s.retrying(attempt+1, err)
	}
	return pause.For(req.Context(), wait)
}

// mayRetry reports whether a retry may succeed and is safe even if the failed attempt was
// carried out.
func mayRetry(req *http.Request, err error) bool {
	safe := true
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete:
	default:
		safe = req.Header.Get(keyHeader) != ""
	}
	e, answered := errors.AsType[*Error](err)
	if !answered {
		return safe && req.Context().Err() == nil && !settled(err)
	}
	switch e.Status {
	case http.StatusTooManyRequests:
		return true
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return safe
	case http.StatusConflict: // an attempt before this one is still under way
		return safe && e.Code == "IDEMPOTENCY_KEY_IN_PROGRESS"
	}
	return false
}

// settled reports whether the connection failed for a reason that waiting does not remove:
// a certificate that one side refuses, or an address that speaks no TLS.
func settled(err error) bool {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	broken, isOp := errors.AsType[*net.OpError](err)
	return untrusted || (isOp && broken.Op == "remote error") || errors.Is(err, http.ErrSchemeMismatch)
}

func rewindable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

// rewind makes the body of a request ready to be sent once more.
func rewind(req *http.Request) (err error) {
	if req.GetBody != nil {
		req.Body, err = req.GetBody()
	}
	return err
}

func hasStatus(err error, status int) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == status
}
