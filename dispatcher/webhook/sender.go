package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/internal/clock"
	"spendhook/internal/egress"
	"spendhook/internal/httpsig"
	"spendhook/internal/tracing"
	"spendhook/subscribers/callback"
	"spendhook/subscribers/certificate"
)

// Bounds of what is read of an answer, and of what is stored, in bytes.
const (
	maxResponseBody   = 16 << 10
	maxResponseHeader = 64 << 10
	maxStoredBody     = 1 << 10
)

// SenderOptions configures a Sender. Guard, Timeout and ConnectTimeout are required.
type SenderOptions struct {
	Guard          *egress.Guard // which addresses may be reached
	Proxy          *egress.Proxy // makes the connections and guards addresses itself; nil: none
	Version        string        // for the User-Agent
	Timeout        time.Duration // of a whole attempt, the body of the answer included
	ConnectTimeout time.Duration // for name resolution and TCP, then again for the TLS handshake
	TLS            *tls.Config   // roots; nil: the system's
	Registerer     prometheus.Registerer
	Now            func() time.Time // nil: time.Now
}

// Request is one attempt to be made. The Sender does not change or keep it.
type Request struct {
	URL         *url.URL // parsed once per subscriber, never modified
	URLVersion  int      // for the log of attempts
	EventID     string
	Sequence    int64  // the event's number in its company; 0: none
	Previous    int64  // the number of the event before for this subscriber; 0: unknown
	Body        []byte // these bytes are signed and sent
	ContentType string
	Traceparent string            // of the attempt's span; "": none
	Signer      *signature.Signer // Standard Webhooks; nil: no such signature
	MessageKey  httpsig.Key       // HTTP Message Signatures (RFC 9421); nil: no such signature
	Headers     http.Header       // additional ones; those that the Sender sets take precedence

	StopOn []int   // statuses of answers that end the attempts of the delivery
	Method string  // "": POST
	Answer *Answer // where the answer is kept, whatever its status; nil: it is not kept

	Company     uuid.UUID
	Subscriber  uuid.UUID
	OAuth       *callback.OAuth          // where the subscriber's access token is fetched; nil: none is sent
	Certificate *certificate.Certificate // of the company, for receivers that ask for one; nil: none
	Locked      error                    // why nothing may be sent; else nil
}

// Answer is the head and the beginning of the answer to a Request.
type Answer struct {
	Header http.Header
	Body   []byte // at most 1 KiB and one byte, if the answer is longer
}

// Signed returns the Standard Webhooks headers of an attempt at a time: id, timestamp, sequence, previous, and the
// signature if the request has a Signer.
func (r Request) Signed(at time.Time) map[string]string {
	values := r.signed(at.Unix())
	headers := map[string]string{signature.HeaderID: values[0], signature.HeaderTimestamp: values[1]}
	if r.Signer != nil {
		headers[signature.HeaderSignature] = values[2]
	}
	if r.Sequence > 0 {
		headers[signature.HeaderSequence] = values[3]
	}
	if r.Previous > 0 {
		headers[signature.HeaderPrevious] = values[4]
	}
	return headers
}

// signed are the values of the headers of package signature: id, timestamp, signature, sequence and previous, at ts,
// in unix seconds.
func (r *Request) signed(ts int64) (values [5]string) {
	values[0], values[1] = r.EventID, strconv.FormatInt(ts, 10)
	values[3], values[4] = strconv.FormatInt(r.Sequence, 10), strconv.FormatInt(r.Previous, 10)
	if r.Signer != nil {
		values[2] = r.Signer.Sign(r.EventID, ts, r.Body)
	}
	return values
}

// messageLifetime is how long after an attempt its HTTP message signature is valid: as long as receivers of
// Standard Webhooks accept a timestamp.
const messageLifetime = 5 * time.Minute

// signMessage adds the headers of an HTTP message signature to the others, which it covers.
func (r *Request) signMessage(header http.Header, values [5]string, at time.Time) error {
	m := httpsig.Message{
		Method: http.MethodPost, URL: r.URL, ContentType: r.ContentType, Body: r.Body, ID: values[0], Timestamp: values[1],
	}
	if r.Sequence > 0 {
		m.Sequence = values[3]
	}
	if r.Previous > 0 {
		m.Previous = values[4]
	}
	signed, err := httpsig.Sign(r.MessageKey, m, at, messageLifetime)
	if err != nil {
		return err
	}
	header[httpsig.HeaderDigest] = []string{signed.Digest}
	header[httpsig.HeaderInput] = []string{signed.Input}
	header[httpsig.HeaderSignature] = []string{signed.Signature}
	return nil
}

// Sender makes delivery attempts: one request each, a signed POST unless the request says otherwise, over shared keep-alive
// connections, HTTP/2 where the receiver speaks it. It follows no redirect, uses
// no proxy but its own, decompresses nothing and reads a bounded answer. Safe
// for concurrent use; Close it at the end.
type Sender struct {
	transport *transport
	tokens    *tokens
	timeout   time.Duration
	userAgent []string
	now       func() time.Time
	buffers   sync.Pool
}

// NewSender makes a Sender.
func NewSender(o SenderOptions) *Sender {
	o.Now = clock.Or(o.Now)
	transport := newTransport(o)
	return &Sender{
		transport: transport,
		tokens:    newTokens(o, transport),
		timeout:   o.Timeout,
		userAgent: []string{"spendhook/" + o.Version},
		now:       o.Now,
		// One byte more than is accepted, to see whether there was more.
		buffers: sync.Pool{New: func() any { return new([maxResponseBody + 1]byte) }},
	}
}

// Timeout is the maximum duration of an attempt.
func (s *Sender) Timeout() time.Duration { return s.timeout }

// Close closes the idle connections, and ends the requests for access tokens. Attempts under way continue.
func (s *Sender) Close() {
	s.tokens.end()
	s.transport.CloseIdleConnections()
}

// Send makes one attempt and returns its result, at the latest after the attempt's timeout. It signs once it has
// the access token. If ctx is cancelled before the status of the answer came, the class is attempt.ClassAborted. A Locked
// request is not sent.
func (s *Sender) Send(ctx context.Context, r Request) attempt.Result {
	started := s.now()
	res := attempt.Result{StartedAt: started, URLVersion: r.URLVersion}
	if r.Locked != nil {
		res.Class, res.Err = attempt.ClassLocked, r.Locked
		return res
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errAttemptTimeout)
	defer cancel()
	var token string
	signed := started
	if r.OAuth != nil {
		var err error
		if token, err = s.tokens.get(ctx, r.Subscriber, r.OAuth); err != nil {
			res.Class, res.Err, res.Duration = classifyToken(ctx, err), err, s.now().Sub(started)
			return res
		}
		r.Headers = withToken(r.Headers, token)
		signed = s.now()
	}
	to := s.transport.destination(&r)
	req, err := s.request(r, signed)
	if err != nil { // it could not be signed
		res.Class, res.Err = attempt.ClassLocked, err
		return res
	}
	res.Sent = req.Header
	resp, p, err := s.roundTrip(ctx, req, to) //nolint:bodyclose // readAnswer does
	if err != nil && !to.http1 && refusesHTTP2(err) {
		s.transport.http1.Add(to.place(), struct{}{})
		to.http1 = true
		resp, p, err = s.roundTrip(ctx, req, to) //nolint:bodyclose // readAnswer does
	}
	if err != nil {
		res.Class, res.Err = classifyError(ctx, err), err
	} else {
		s.readAnswer(resp, &r, &res)
	}
	if token != "" && res.StatusCode == http.StatusUnauthorized {
		s.tokens.reject(r.Subscriber, r.OAuth, token)
	}
	res.Duration = s.now().Sub(started)
	if res.Timing = p.stop(); s.transport.dialer.Proxy == nil {
		res.Address = p.reached
	}
	return res
}

// roundTrip is not that of http.Client, which would follow redirects.
func (s *Sender) roundTrip(ctx context.Context, req *http.Request, to destination) (*http.Response, *progress, error) {
	p := &progress{now: s.now, to: to}
	sent := req.WithContext(p.follow(ctx))
	sent.URL = s.transport.pool(req.URL, &to, s.now())
	sent.Body, _ = req.GetBody()
	resp, err := s.transport.RoundTrip(sent)
	p.noConnectionNeeded()
	return resp, p, err
}

// request does not use http.NewRequest, which would parse and copy the URL each time.
func (s *Sender) request(r Request, at time.Time) (*http.Request, error) {
	values := r.signed(at.Unix())
	header := make(http.Header, len(r.Headers)+8)
	maps.Copy(header, r.Headers)
	if r.ContentType != "" {
		header["Content-Type"] = []string{r.ContentType}
	}
	header["User-Agent"] = s.userAgent
	header[signature.HeaderID] = values[0:1:1]
	header[signature.HeaderTimestamp] = values[1:2:2]
	if r.Signer != nil {
		header[signature.HeaderSignature] = values[2:3:3]
	}
	if r.Sequence > 0 {
		header[signature.HeaderSequence] = values[3:4:4]
	}
	if r.Previous > 0 {
		header[signature.HeaderPrevious] = values[4:5:5]
	}
	if r.MessageKey != nil {
		if err := r.signMessage(header, values, at); err != nil {
			return nil, err
		}
	}
	if r.Traceparent != "" {
		header[tracing.Header] = []string{r.Traceparent}
	}
	// Not sent. It allows net/http to repeat the request at once when a kept-alive
	// connection turns out to be closed. Receivers recognise duplicates by webhook-id.
	header["Idempotency-Key"] = nil
	return &http.Request{
		Method: cmp.Or(r.Method, http.MethodPost), URL: r.URL, Host: r.URL.Host,
		Header:        header,
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Body)), nil },
		ContentLength: int64(len(r.Body)),
	}, nil
}

// readAnswer sets the result by the status. It keeps the body of a failure for the attempt
// log, with the values of sent headers redacted. The status decides, whether or not the body ends
// well: a body that is too long is cut and its connection closed, one that breaks off or is
// incomplete at the attempt's timeout changes nothing.
func (s *Sender) readAnswer(resp *http.Response, r *Request, res *attempt.Result) {
	defer resp.Body.Close()
	if r.Answer != nil {
		r.Answer.Header = resp.Header
	}
	res.StatusCode, res.Class = resp.StatusCode, classifyAnswer(resp, r.StopOn)
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		res.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"), s.now())
	}
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.Body == http.NoBody {
		return
	}
	buf := s.buffers.Get().(*[maxResponseBody + 1]byte)
	defer s.buffers.Put(buf)
	n, err := io.ReadFull(resp.Body, buf[:])
	if err == nil && res.Class == attempt.ClassNone {
		res.Class = attempt.ClassOversized
	}
	if r.Answer != nil {
		r.Answer.Body = bytes.Clone(buf[:min(n, maxStoredBody+1)])
	}
	if !res.Success() {
		seen := withoutValues(buf[:n], r.Headers)
		res.ResponseBody = bytes.Clone(seen[:min(len(seen), maxStoredBody)])
	}
}

// HeaderOrigin names this system to receivers of CloudEvents.
const HeaderOrigin = "WebHook-Request-Origin"

// minHiddenValue is the minimum length of a header value that is redacted in answers. Shorter
// values are no secrets, and may occur in any text.
const minHiddenValue = 6

// withoutValues replaces the values of headers, and the credentials after an authentication
// scheme (RFC 9110, 11.4), wherever they occur literally.
func withoutValues(body []byte, headers http.Header) []byte {
	for name, values := range headers {
		if name == HeaderOrigin { // it is no secret
			continue
		}
		for _, value := range values {
			_, credentials, _ := strings.Cut(value, " ")
			for _, hidden := range []string{value, credentials} {
				if len(hidden) >= minHiddenValue {
					body = bytes.ReplaceAll(body, []byte(hidden), []byte("[redacted]"))
				}
			}
		}
	}
	return body
}
