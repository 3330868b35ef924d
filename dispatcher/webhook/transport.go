package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"

	"spendhook/internal/egress"
)

const (
	maxIdleConns      = 4096 // kept alive over all endpoints, without a client certificate
	maxCertified      = 1024 // transports with a client certificate
	maxCertifiedConns = 1024 // idle, of each of them: more than one company has in flight to a host
	plainSessions     = 1024 // TLS sessions kept to be resumed
	certifiedSessions = 64
)

// transports are the connection pools of a Sender: one without client certificate, and one
// for each certificate of each company, because a connection or a resumed TLS session keeps
// its certificate. Safe for concurrent use.
type transports struct {
	options   SenderOptions
	plain     *pool
	certified *lru.Cache[identity, *pool]
}

// pool opens guarded connections, a bounded number at a time to each host, and keeps them.
type pool struct {
	*http.Transport

	dialer egress.Dialer
	tls    *tls.Config
	dials  *dials
	now    func() time.Time
}

// identity is a certificate of a company, as it was set.
type identity struct {
	company    uuid.UUID
	thumbprint string
	updated    int64 // unix ms: the chain may be another one
}

func newTransports(o SenderOptions) *transports {
	closeIdle := func(_ identity, p *pool) { p.CloseIdleConnections() }
	certified, _ := lru.NewWithEvict(maxCertified, closeIdle) // fails only for a size < 1
	return &transports{options: o, plain: newPool(o, nil), certified: certified}
}

func (t *transports) of(r Request) *pool {
	if r.Certificate == nil {
		return t.plain
	}
	id := identity{r.Company, r.Certificate.Thumbprint, r.Certificate.UpdatedAt.UnixMilli()}
	if found, ok := t.certified.Get(id); ok {
		return found
	}
	fresh := newPool(t.options, r.Certificate.TLS)
	if found, ok, _ := t.certified.PeekOrAdd(id, fresh); ok {
		return found // another attempt was first
	}
	return fresh
}

func (t *transports) close() {
	t.plain.CloseIdleConnections()
	t.certified.Purge()
}

// newPool bounds the idle connections over all hosts: net/http closes the least recently used
// one. A bound per host would close connections that a busy host needs again at once.
func newPool(o SenderOptions, certificate *tls.Certificate) *pool {
	config, idle := &tls.Config{MinVersion: tls.VersionTLS12}, maxIdleConns
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(plainSessions)
	if certificate != nil {
		idle = maxCertifiedConns
		config.ClientSessionCache = tls.NewLRUClientSessionCache(certifiedSessions)
		// Send the certificate even if the receiver does not name its issuer: the TLS alert then
		// says why the receiver refuses it.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	p := &pool{
		dialer: egress.Dialer{Guard: o.Guard, Proxy: o.Proxy, Timeout: o.ConnectTimeout},
		tls:    config, dials: newDials(), now: o.Now,
	}
	p.Transport = &http.Transport{
		DialContext:            p.bounded(p.dialer.DialContext),
		DialTLSContext:         p.bounded(p.handshake),
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: o.Timeout, PingTimeout: o.ConnectTimeout},
		DisableCompression:     true,
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	return p
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

func (p *pool) bounded(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		end, err := p.dials.begin(ctx, address)
		if err != nil {
			return nil, err
		}
		defer end()
		return dial(ctx, network, address)
	}
}

// handshake connects like net/http, but marks errors of the TLS handshake as handshakeError.
func (p *pool) handshake(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := p.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := p.tls.Clone()
	config.ServerName, _, _ = net.SplitHostPort(address)
	conn := tls.Client(raw, config)
	ctx, cancel := context.WithTimeout(ctx, p.dialer.Timeout)
	defer cancel()
	began := p.now()
	err = conn.HandshakeContext(ctx)
	noteHandshake(ctx, p.now().Sub(began))
	if err != nil {
		raw.Close()
		return nil, &handshakeError{err}
	}
	return conn, nil
}
