package dispatcher

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"spendhook/internal/egress"
)

// The most that is taken from an answer, in bytes.
const (
	maxResponseBody   = 16 << 10
	maxResponseHeader = 64 << 10
	maxStoredBody     = 4 << 10
)

// SenderOptions configures a Sender; zero values mean the defaults.
type SenderOptions struct {
	Guard          *egress.Guard    // which addresses may be reached; nil: public ones only
	Version        string           // for the User-Agent
	Timeout        time.Duration    // of a whole attempt, the body of the answer included; 15 s
	ConnectTimeout time.Duration    // for name resolution and TCP, then again for the TLS handshake; 5 s
	MaxIdleConns   int              // kept alive over all endpoints; 4096
	TLS            *tls.Config      // roots and client certificates; nil: the system's roots
	Now            func() time.Time // nil: time.Now
}

// Request is one attempt to be made. The Sender does not change or keep it.
type Request struct {
	URL     *url.URL // parsed once per subscriber, never modified
	EventID string
	Body    []byte // these bytes are signed and sent
	Signer  *Signer
}

// Sender makes delivery attempts: one signed POST each, over shared keep-alive
// connections, HTTP/2 where the receiver speaks it. It follows no redirect,
// uses no proxy, decompresses nothing and reads a bounded answer. Safe for
// concurrent use; Close it at the end.
type Sender struct {
	transport *http.Transport
	timeout   time.Duration
	userAgent []string
	now       func() time.Time
	buffers   sync.Pool
}

// NewSender makes a Sender.
func NewSender(o SenderOptions) *Sender {
	o = o.withDefaults()
	return &Sender{
		transport: newTransport(o),
		timeout:   o.Timeout,
		userAgent: []string{"spendhook/" + o.Version},
		now:       o.Now,
		// One byte more than is accepted, to see whether there was more.
		buffers: sync.Pool{New: func() any { return new([maxResponseBody + 1]byte) }},
	}
}

func (o SenderOptions) withDefaults() SenderOptions {
	if o.Guard == nil {
		o.Guard = egress.New(egress.Options{})
	}
	if o.Timeout <= 0 {
		o.Timeout = 15 * time.Second
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = 5 * time.Second
	}
	if o.MaxIdleConns <= 0 {
		o.MaxIdleConns = 4096
	}
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the one default
	}
	return o
}

func newTransport(o SenderOptions) *http.Transport {
	d := newDialer(o)
	return &http.Transport{
		DialContext:            d.DialContext,
		DialTLSContext:         d.dialTLS,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: o.Timeout, PingTimeout: o.ConnectTimeout},
		DisableCompression:     true,
		MaxIdleConns:           o.MaxIdleConns,
		MaxIdleConnsPerHost:    64, // as many as one endpoint may have in flight
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
}

// Close closes the idle connections. Attempts under way are not touched.
func (s *Sender) Close() { s.transport.CloseIdleConnections() }

// Send makes one attempt and tells what came of it; it never returns later
// than the attempt's timeout. Cancelling ctx gives ClassAborted, unless the
// answer's status was already there.
func (s *Sender) Send(ctx context.Context, r Request) Result {
	started := s.now()
	res := Result{StartedAt: started}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errAttemptTimeout)
	defer cancel()
	// Not http.Client: it would follow redirects.
	resp, err := s.transport.RoundTrip(s.request(ctx, r, started.Unix()))
	if err != nil {
		res.Class, res.Err = classifyError(ctx, err), err
	} else {
		s.readAnswer(ctx, resp, &res)
	}
	res.Duration = s.now().Sub(started)
	return res
}

var contentType = []string{"application/json"}

// request builds by hand what http.NewRequest would parse and copy anew.
func (s *Sender) request(ctx context.Context, r Request, ts int64) *http.Request {
	values := [...]string{r.EventID, strconv.FormatInt(ts, 10), r.Signer.Signature(r.EventID, ts, r.Body)}
	req := &http.Request{
		Method: http.MethodPost, URL: r.URL, Host: r.URL.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"Content-Type":  contentType,
			"User-Agent":    s.userAgent,
			HeaderID:        values[0:1:1],
			HeaderTimestamp: values[1:2:2],
			HeaderSignature: values[2:3:3],
			// Not sent, but net/http reads it as leave to repeat the request at
			// once when a kept-alive connection turns out to be closed: the
			// receiver tells duplicates by webhook-id.
			"Idempotency-Key": {},
		},
		Body:          io.NopCloser(bytes.NewReader(r.Body)),
		GetBody:       func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.Body)), nil },
		ContentLength: int64(len(r.Body)),
	}
	return req.WithContext(ctx)
}

// readAnswer takes the status as the receiver's word; the body is only for the
// attempt log. A body that is still coming when the attempt's time is up makes
// the attempt a timeout all the same; one that is too long is cut, and with it
// the connection; one that breaks off changes nothing.
func (s *Sender) readAnswer(ctx context.Context, resp *http.Response, res *Result) {
	defer resp.Body.Close()
	res.StatusCode, res.Class = resp.StatusCode, classifyStatus(resp.StatusCode)
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		res.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"), s.now())
	}
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.Body == http.NoBody {
		return
	}
	buf := s.buffers.Get().(*[maxResponseBody + 1]byte)
	defer s.buffers.Put(buf)
	n, err := io.ReadFull(resp.Body, buf[:])
	res.ResponseBody = bytes.Clone(buf[:min(n, maxStoredBody)])
	switch {
	case err == nil && res.Class == ClassNone:
		res.Class = ClassOversized
	case err != nil && errors.Is(context.Cause(ctx), errAttemptTimeout):
		res.Class, res.Err = ClassTimeout, err
	}
}

// dialer opens guarded connections.
type dialer struct {
	net.Dialer
	tls *tls.Config
}

func newDialer(o SenderOptions) *dialer {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1024)
	return &dialer{
		Dialer: net.Dialer{Timeout: o.ConnectTimeout, Control: o.Guard.Control},
		tls:    config,
	}
}

// dialTLS does what net/http would, but gives the errors of the handshake a
// type of their own.
func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := d.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address)
	conn := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, &handshakeError{err}
	}
	return conn, nil
}
