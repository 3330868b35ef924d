package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const tightLimits = `
http: {max_connections: 200, max_connections_per_address: 20, header_timeout: 3s, request_timeout: 4s, idle_timeout: 1s}
`

// TestSlowClients: clients that send as slowly as possible are disconnected, and another
// client is answered meanwhile.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	certs := newDevCerts(t)
	secure := newInstallation(t, sharedRedis(t), tightLimits).startSecure(t, certs.serveFlags()...)
	bare := newInstallation(t, sharedRedis(t), tightLimits).start(t)
	text, err := os.ReadFile(certs.path("ca.pem"))
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatal("no authority", err)
	}
	overTLS := func(c net.Conn) net.Conn {
		return tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "localhost"})
	}
	plain := func(c net.Conn) net.Conn { return c }

	var wg sync.WaitGroup
	from := byte(1)
	for name, s := range map[string]siege{
		"silent":             {bare.api, plain, "", honest(t, bare.api+"/openapi.json", nil)},
		"slow header":        {bare.api, plain, slowHeader, honest(t, bare.api+"/openapi.json", nil)},
		"slow body":          {bare.api, plain, slowBody(bare.token), honest(t, bare.api+"/openapi.json", nil)},
		"no handshake":       {secure.api, plain, "", honest(t, secure.api+"/openapi.json", pool)},
		"slow header by TLS": {secure.api, overTLS, slowHeader, honest(t, secure.api+"/openapi.json", pool)},
		"slow body by TLS":   {secure.api, overTLS, slowBody(secure.token), honest(t, secure.api+"/openapi.json", pool)},
		"admin":              {bare.admin, plain, slowHeader, honest(t, bare.admin+"/healthz", nil)},
	} {
		from++
		address := net.IPv4(127, 0, 0, from)
		wg.Go(func() {
			if answered, failed, err := s.lay(t, address); 4*answered+4 < failed {
				t.Errorf("%s: an honest client was answered %d times, and %d times not: %v", name, answered, failed, err)
			}
		})
	}
	wg.Wait()
	for url, series := range map[string]string{
		bare.admin:   `spendhook_connections_refused_total{listener="intake",reason="address"}`,
		secure.admin: `spendhook_connections_refused_total{listener="intake",reason="address"}`,
	} {
		if _, metrics := get(t, url+"/metrics"); strings.Contains(metrics, series+" 0\n") || !strings.Contains(metrics, series) {
			t.Errorf("no connection was refused: %s", series)
		}
	}
}

// siege is many slow clients with one address, and an honest client with another.
type siege struct {
	url    string
	wrap   func(net.Conn) net.Conn
	say    string // at once; then a byte at a time
	honest func() error
}

// lay runs the clients until all slow ones are disconnected. It returns how often the honest
// client was answered and how often it was not, with its last error: on a busy machine it may be slow itself.
func (s siege) lay(tb testing.TB, from net.IP) (answered, failed int, last error) {
	tb.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}
	_, address, _ := strings.Cut(s.url, "://")
	var wg sync.WaitGroup
	defer wg.Wait()
	var left atomic.Int64
	for range 60 {
		left.Add(1)
		wg.Go(func() {
			defer left.Add(-1)
			if err := dawdle(tb, dialer, address, s.wrap, s.say); err != nil {
				tb.Error(err)
			}
		})
	}
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for ; left.Load() > 0; <-pause.C {
		if err := s.honest(); err != nil {
			failed, last = failed+1, err
		} else {
			answered++
		}
	}
	return answered, failed, last
}

const slowHeader = "GET /openapi.json HTTP/1.1\r\nX-A: "

func slowBody(token string) string {
	return "POST /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token +
		"\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
}

// honest asks once, on a connection of its own.
func honest(tb testing.TB, url string, pool *x509.CertPool) func() error {
	tb.Helper()
	client := httpClient(tb, &tls.Config{RootCAs: pool})
	client.Transport.(*http.Transport).DisableKeepAlives = true
	return func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
}

// dawdle connects and sends a byte every 100 ms. It returns once it is disconnected, with an
// error if that takes too long.
func dawdle(tb testing.TB, dialer *net.Dialer, address string, wrap func(net.Conn) net.Conn, say string) error {
	tb.Helper()
	raw, err := dialer.DialContext(tb.Context(), "tcp", address)
	if err != nil {
		return nil // a refused connection is fine too
	}
	conn := wrap(raw)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	cut := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, conn) // a refusal may come before the end
		cut <- err
	}()
	if _, err := conn.Write([]byte(say)); err != nil {
		<-cut
		return nil // cut off
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-cut:
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return errors.New("is still connected")
			}
			return nil
		case <-ticker.C:
			if say != "" {
				_, _ = conn.Write([]byte("a")) // the reader sees the end
			}
		}
	}
}
