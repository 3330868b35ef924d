package webhook

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/internal/egress"
	"spendhook/subscribers/certificate"
)

const (
	maxIdleConns   = 4096 // kept alive in all
	maxIdleForHost = 1024 // of them by a company to a host: more than it has in flight there
	// maxAge is how long attempts begin on a connection, and how long it may be idle. So an
	// address that moved in DNS is noticed under steady traffic too.
	maxAge      = time.Minute
	tlsSessions = 4096 // kept to be resumed
	http1Hosts  = 4096 // remembered to refuse HTTP/2
)

// destination is where an attempt connects to, and as whom.
type destination struct {
	address     string // host:port
	company     uuid.UUID
	certificate *certificate.Certificate // for receivers that ask for one; nil: none
	http1       bool                     // the receiver refuses HTTP/2
}

// transport opens guarded connections and keeps them. Attempts share connections, TLS sessions and
// the bound of running dials only within a company: a receiver that does not read stalls its own
// company. Safe for concurrent use.
type transport struct {
	*http.Transport

	dialer   egress.Dialer
	tls      *tls.Config
	sessions tls.ClientSessionCache
	http1    *lru.Cache[place, struct{}] // that refuse HTTP/2
	dials    *dials
	maxAge   time.Duration // but for tests, the constant
	now      func() time.Time
}

func newTransport(o SenderOptions) *transport {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		config = o.TLS
	}
	http1, _ := lru.New[place, struct{}](http1Hosts) // fails only for a size < 1
	t := &transport{
		dialer: egress.Dialer{Guard: o.Guard, Proxy: o.Proxy, Timeout: o.ConnectTimeout},
		tls:    config, sessions: tls.NewLRUClientSessionCache(tlsSessions),
		http1: http1, dials: newDials(), maxAge: maxAge, now: o.Now,
	}
	t.Transport = &http.Transport{
		DialContext:            t.bounded(t.connect),
		DialTLSContext:         t.bounded(t.handshake),
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: o.Timeout, PingTimeout: o.ConnectTimeout},
		DisableCompression:     true,
		MaxIdleConns:           maxIdleConns,
		MaxIdleConnsPerHost:    maxIdleForHost,
		IdleConnTimeout:        maxAge,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	return t
}

// destination is that of a request.
func (t *transport) destination(r *Request) destination {
	to := destination{address: hostPort(r.URL), company: r.Company, certificate: r.Certificate}
	_, to.http1 = t.http1.Get(to.place())
	return to
}

func hostPort(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Host
	case u.Scheme == "http":
		return net.JoinHostPort(u.Hostname(), "80")
	default:
		return net.JoinHostPort(u.Hostname(), "443")
	}
}

// place is an address as a company sees it.
type place struct {
	company uuid.UUID
	address string
}

func (d *destination) place() place { return place{d.company, d.address} }

// identity is the certificate that is shown, as it was set; "" for none. A connection or a resumed TLS
// session keeps its certificate.
func (d *destination) identity() string {
	if d.certificate == nil {
		return ""
	}
	return strconv.FormatInt(d.certificate.UpdatedAt.UnixMilli(), 36) + "." + d.certificate.Thumbprint
}

// pool is the URL by which net/http pools connections: attempts share them only with the same pool.
// Its host is not an address: bounded connects to the destination. The pool changes with each maxAge, at
// a time of the company's own, and with each change of the allowed networks.
func (t *transport) pool(of *url.URL, d *destination, at time.Time) *url.URL {
	generation := at.Add(time.Duration(d.company[0])*t.maxAge/256).UnixNano() / int64(t.maxAge)
	var buffer [256]byte
	name := buffer[:0]
	name = strconv.AppendInt(name, generation, 36)
	name = append(name, '-')
	name = strconv.AppendUint(name, t.dialer.Guard.Version(), 36)
	if d.http1 {
		name = append(name, "-http1"...)
	}
	name = append(name, '.')
	name = append(name, d.identity()...)
	name = append(name, '.')
	name = hex.AppendEncode(name, d.company[:])
	name = append(name, '.')
	for i := range len(d.address) {
		c := d.address[i]
		if c == ':' || c == '[' || c == ']' { // of IPv6, and before the port
			c = '_'
		}
		name = append(name, c)
	}
	pool := *of
	pool.Host = string(name)
	return &pool
}

type (
	dialFunc    = func(ctx context.Context, network, address string) (net.Conn, error)
	connectFunc = func(ctx context.Context, to *destination) (net.Conn, error)
)

// bounded connects to the destination of the attempt for which net/http dials. It bounds the dials of
// each pool.
func (t *transport) bounded(connect connectFunc) dialFunc {
	return func(ctx context.Context, _, pool string) (net.Conn, error) {
		attempt, ok := ctx.Value(progressKey{}).(*progress)
		if !ok {
			return nil, errors.New("dial without an attempt")
		}
		end, err := t.dials.begin(ctx, pool)
		if err != nil {
			return nil, err
		}
		defer end()
		return connect(ctx, &attempt.to)
	}
}

func (t *transport) connect(ctx context.Context, to *destination) (net.Conn, error) {
	return t.dialer.DialContext(ctx, "tcp", to.address)
}

// handshake connects like net/http, but marks errors of the TLS handshake as handshakeError.
func (t *transport) handshake(ctx context.Context, to *destination) (net.Conn, error) {
	raw, err := t.connect(ctx, to)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, t.config(to))
	ctx, cancel := context.WithTimeout(ctx, t.dialer.Timeout)
	defer cancel()
	began := t.now()
	err = conn.HandshakeContext(ctx)
	noteHandshake(ctx, t.now().Sub(began))
	if err != nil {
		raw.Close()
		return nil, &handshakeError{err}
	}
	return conn, nil
}

func (t *transport) config(to *destination) *tls.Config {
	config := t.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(to.address)
	config.NextProtos = []string{"h2", "http/1.1"}
	if to.http1 {
		config.NextProtos = config.NextProtos[1:]
	}
	config.ClientSessionCache = &sessions{t.sessions, to.company.String() + to.address + to.identity()}
	if to.certificate != nil {
		// Send the certificate even if the receiver does not name its issuer: the TLS alert then
		// says why the receiver refuses it.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return to.certificate.TLS, nil }
		config.Renegotiation = tls.RenegotiateOnceAsClient // receivers with TLS 1.2 may ask only after they read the path
	}
	return config
}

// sessions are the TLS sessions of one destination.
type sessions struct {
	all tls.ClientSessionCache
	of  string
}

// Get implements tls.ClientSessionCache.
func (s *sessions) Get(string) (*tls.ClientSessionState, bool) { return s.all.Get(s.of) }

// Put implements tls.ClientSessionCache.
func (s *sessions) Put(_ string, state *tls.ClientSessionState) { s.all.Put(s.of, state) }

// refusesHTTP2 reports whether the receiver wants the request by HTTP/1.1 (RFC 9113, section 7). net/http's
// errors of streams and connections have only their text in common.
func refusesHTTP2(err error) bool { return strings.Contains(err.Error(), "HTTP_1_1_REQUIRED") }
