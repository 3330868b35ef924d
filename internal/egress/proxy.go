package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxProxyAnswer bounds the header of a proxy's answer, in bytes.
const maxProxyAnswer = 16 << 10

// Proxy is an HTTP proxy that connects by CONNECT (RFC 9110, 9.3.6). It cannot read requests to
// https receivers. It is the operator's own proxy, so that the guard does not check its
// address. It must itself refuse connections to addresses that must not be reached. Safe for
// concurrent use.
type Proxy struct {
	address       string // host:port
	tls           *tls.Config
	authorization string
}

var errProxyURL = errors.New("want http://host:port or https://host:port, with user:password@ in front of the host if the proxy asks for it")

// NewProxy parses the URL of a proxy. roots are the CAs of an https proxy; nil means those of the
// system. The error does not repeat the URL, because the URL may contain a password.
func NewProxy(address string, roots *x509.CertPool) (*Proxy, error) {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
		return nil, errProxyURL
	}
	p := &Proxy{}
	port := u.Port()
	switch u.Scheme {
	case "http":
		port = cmp.Or(port, "80")
	case "https":
		port = cmp.Or(port, "443")
		p.tls = &tls.Config{
			RootCAs: roots, ServerName: u.Hostname(), MinVersion: tls.VersionTLS12,
			ClientSessionCache: tls.NewLRUClientSessionCache(8), NextProtos: []string{"http/1.1"},
		}
	default:
		return nil, errProxyURL
	}
	p.address = net.JoinHostPort(u.Hostname(), port)
	if u.User != nil {
		password, _ := u.User.Password()
		p.authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password))
	}
	return p, nil
}

// Address is the host and port of the proxy.
func (p *Proxy) Address() string { return p.address }

// ProxyError means that the proxy made no connection.
type ProxyError struct {
	Status  int  // of the proxy's answer; 0 when there was none
	Waiting bool // the proxy accepted the connection, but did not answer in time
	Err     error
}

// Error describes the failure, without the credentials of the proxy.
func (e *ProxyError) Error() string {
	if e.Status != 0 {
		return fmt.Sprintf("egress proxy answered %d", e.Status)
	}
	return "egress proxy: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *ProxyError) Unwrap() error { return e.Err }

// connect returns a connection to address through the proxy. The timeout applies to the connection
// to the proxy (TLS included), and again to its answer.
func (p *Proxy) connect(ctx context.Context, address string, timeout time.Duration) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: timeout}
	dial := dialer.DialContext
	if p.tls != nil {
		dial = (&tls.Dialer{NetDialer: dialer, Config: p.tls}).DialContext
	}
	conn, err := dial(ctx, "tcp", p.address)
	if err != nil {
		return nil, &ProxyError{Err: fmt.Errorf("connect: %w", err)}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	status, err := p.exchange(conn, address)
	switch {
	case !stop(): // the time is up, and conn is closed
		return nil, &ProxyError{Waiting: true, Err: ctx.Err()}
	case err == nil && status >= 200 && status <= 299:
		return conn, nil
	}
	conn.Close()
	return nil, &ProxyError{Status: status, Err: cmp.Or(err, errNoConnection)}
}

var errNoConnection = errors.New("no connection")

func (p *Proxy) exchange(conn net.Conn, address string) (status int, err error) {
	request := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if p.authorization != "" {
		request.Header.Set("Proxy-Authorization", p.authorization)
	}
	request.Header.Set("User-Agent", "spendhook")
	if err := request.Write(conn); err != nil {
		return 0, err
	}
	reader := bufio.NewReader(io.LimitReader(conn, maxProxyAnswer))
	answer, err := http.ReadResponse(reader, request) //nolint:bodyclose // what follows a 2xx is the tunnel, and after others the connection is closed
	if err != nil {
		return 0, fmt.Errorf("read the answer: %w", err)
	}
	if reader.Buffered() > 0 && answer.StatusCode < 300 {
		return 0, errors.New("data after the header of the answer")
	}
	return answer.StatusCode, nil
}
