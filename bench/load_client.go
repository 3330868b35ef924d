package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

const (
	postTimeout = 10 * time.Second // of a request and its answer
	maxAnswer   = 1 << 20          // bytes
)

// poster POSTs one request at a time and returns the answer.
type poster interface {
	post(ctx context.Context, t target, id eventID, body []byte) (status int, answer []byte, err error)
	close()
}

// poster returns the poster of one client. The bare loop always uses net/http.
func (l *load) poster() poster {
	if l.Bare || l.Plain {
		return &plainPoster{client: l.plain, signed: l.Bare}
	}
	return &leanPoster{}
}

func newPlainClient(spec loadSpec) (*http.Client, error) {
	t := &http.Transport{
		MaxIdleConns: 4 * spec.Clients, MaxIdleConnsPerHost: spec.Clients,
		Protocols: protocols(spec.HTTP2),
	}
	if spec.CA != "" {
		authority, err := os.ReadFile(spec.CA)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		t.TLSClientConfig.RootCAs.AppendCertsFromPEM(authority)
	}
	return &http.Client{Timeout: postTimeout, Transport: t}, nil
}

// protocols are HTTP/1.1, and HTTP/2 over TLS where it is wanted.
func protocols(http2 bool) *http.Protocols {
	p := &http.Protocols{}
	p.SetHTTP1(true)
	p.SetHTTP2(http2)
	return p
}

// plainPoster sends with net/http's client: deliveries, signed like those of a daemon, or events,
// with a token.
type plainPoster struct {
	client *http.Client
	signed bool
}

var bareKey = []byte("0123456789abcdef0123456789abcdef")

func (p *plainPoster) post(ctx context.Context, t target, id eventID, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if p.signed {
		id, timestamp := id.String(), strconv.FormatInt(id.sent.Unix(), 10)
		req.Header.Set("webhook-id", id)
		req.Header.Set("webhook-timestamp", timestamp)
		req.Header.Set("webhook-signature", sign(bareKey, id, timestamp, body))
	} else {
		req.Header.Set("Authorization", "Bearer "+t.Token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, answer, err
}

func (p *plainPoster) close() {} // all clients share the connections

// leanPoster sends on a connection of its own, with as little CPU as possible. Unlike net/http's
// client it never repeats a request, so the load generator counts every request.
type leanPoster struct {
	to, host, path string // the target of the connection
	conn           net.Conn
	answers        *bufio.Reader
	request        []byte
}

func (p *leanPoster) post(ctx context.Context, t target, _ eventID, body []byte) (int, []byte, error) {
	status, answer, err := p.exchange(ctx, t, body)
	if err != nil {
		p.close()
	}
	return status, answer, err
}

func (p *leanPoster) exchange(ctx context.Context, t target, body []byte) (int, []byte, error) {
	if err := p.connect(ctx, t.URL); err != nil {
		return 0, nil, err
	}
	p.request = fmt.Appendf(p.request[:0], "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", p.path, p.host, t.Token, len(body))
	p.request = append(p.request, body...)
	if _, err := p.conn.Write(p.request); err != nil {
		return 0, nil, err
	}
	resp, err := http.ReadResponse(p.answers, nil)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if resp.Close {
		p.close()
	}
	return resp.StatusCode, answer, err
}

// connect opens a connection to the target unless there is one, and sets its deadline.
func (p *leanPoster) connect(ctx context.Context, address string) error {
	if p.to != address {
		p.close()
	}
	deadline := time.Now().Add(postTimeout)
	if p.conn == nil {
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		dialer := net.Dialer{Deadline: deadline}
		if p.conn, err = dialer.DialContext(ctx, "tcp", u.Host); err != nil {
			return err
		}
		p.to, p.host, p.path = address, u.Host, u.RequestURI()
		p.answers = bufio.NewReader(p.conn)
	}
	return p.conn.SetDeadline(deadline)
}

func (p *leanPoster) close() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}
