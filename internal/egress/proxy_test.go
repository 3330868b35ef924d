package egress_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"spendhook/internal/egress"
	"spendhook/internal/porttest"
)

// proxy connects every client to the same address, and records the requested hosts.
type proxy struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
	auth  string
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.auth = r.Header.Get("Proxy-Authorization")
	p.mu.Unlock()
	out, err := new(net.Dialer).DialContext(r.Context(), "tcp", p.target(r.Host))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer out.Close()
	w.WriteHeader(http.StatusOK)
	in, read, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer in.Close()
	go func() { _, _ = io.Copy(out, read); out.Close() }()
	_, _ = io.Copy(in, out)
}

// target is the resolver of the proxy: every name resolves to this machine.
func (p *proxy) target(host string) string {
	_, port, _ := net.SplitHostPort(host)
	return net.JoinHostPort("127.0.0.1", port)
}

func newProxy(t *testing.T, secure bool) *proxy {
	t.Helper()
	p := &proxy{}
	p.Server = httptest.NewUnstartedServer(p)
	if secure {
		p.StartTLS()
	} else {
		p.Start()
	}
	t.Cleanup(p.Close)
	return p
}

func dialBy(t *testing.T, address string, roots *x509.CertPool) *egress.Dialer {
	t.Helper()
	p, err := egress.NewProxy(address, roots)
	if err != nil {
		t.Fatal(err)
	}
	return &egress.Dialer{Guard: egress.New(egress.Options{}), Proxy: p, Timeout: 5 * time.Second}
}

func TestAProxyConnectsByNameWithCredentials(t *testing.T) {
	t.Parallel()
	receiver, accepted := countingListener(t)
	_, port, _ := net.SplitHostPort(receiver)
	for _, secure := range []bool{false, true} {
		p := newProxy(t, secure)
		var roots *x509.CertPool
		if secure {
			roots = x509.NewCertPool()
			roots.AddCert(p.Certificate())
		}
		d := dialBy(t, strings.Replace(p.URL, "://", "://user:hunter22@", 1), roots)
		before := accepted.Load()
		conn, err := d.DialContext(t.Context(), "tcp", "hooks.example.com:"+port)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) { // the listener closes at once
			t.Errorf("read: %v", err)
		}
		conn.Close()
		if p.asked[0] != "CONNECT hooks.example.com:"+port || p.auth != "Basic dXNlcjpodW50ZXIyMg==" || accepted.Load() != before+1 {
			t.Errorf("the proxy was asked %q with %q", p.asked, p.auth)
		}
	}
}

// With a proxy, the guard cannot see resolved addresses. It still refuses special literal
// addresses and names before it connects to the proxy.
func TestAProxyIsNeverAskedForSpecialAddresses(t *testing.T) {
	t.Parallel()
	p := newProxy(t, false)
	d := dialBy(t, p.URL, nil)
	hosts := []string{
		"localhost", "LocalHost.", "a.localhost", "2130706433", "0x7f000001", "017700000001", "127.1", "0177.0.0.1",
	}
	for addr := range refused {
		hosts = append(hosts, addr)
	}
	for _, host := range hosts {
		if _, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort(host, "443")); !errors.Is(err, egress.ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", host, err)
		}
	}
	if len(p.asked) != 0 {
		t.Errorf("the proxy was asked %q", p.asked)
	}
}

func TestProxyFaultsHaveTheirError(t *testing.T) {
	t.Parallel()
	answering := func(text string) string {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = http.ReadRequest(bufio.NewReader(conn))
				_, _ = io.WriteString(conn, text)
				if text != "" {
					conn.Close()
				} else {
					defer conn.Close()
				}
			}
		}()
		t.Cleanup(func() { l.Close(); <-done })
		return "http://user:hunter22@" + l.Addr().String()
	}
	gone := answering("x")
	dead, _ := url.Parse(gone)
	dead.Host = closedPort(t)
	plain := newProxy(t, false)
	for name, test := range map[string]struct {
		address string
		status  int
		waiting bool
	}{
		"wants credentials":   {answering("HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n"), 407, false},
		"refuses":             {answering("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"), 403, false},
		"cannot connect":      {answering("HTTP/1.1 502 Bad Gateway\r\n\r\n"), 502, false},
		"redirects":           {answering("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n"), 302, false},
		"speaks no HTTP":      {answering("hello\r\n\r\n"), 0, false},
		"says too much":       {answering("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), 0, false},
		"has endless headers": {answering("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"), 0, false},
		"is not there":        {dead.String(), 0, false},
		"speaks no TLS":       {strings.Replace(plain.URL, "http:", "https:", 1), 0, false},
		"never answers":       {answering(""), 0, true},
	} {
		d := dialBy(t, test.address, nil)
		d.Timeout = 200 * time.Millisecond
		_, err := d.DialContext(t.Context(), "tcp", "hooks.example.com:443")
		var fault *egress.ProxyError
		if !errors.As(err, &fault) || fault.Status != test.status || fault.Waiting != test.waiting {
			t.Errorf("a proxy that %s: %v (%+v)", name, err, fault)
		}
		if err != nil && strings.Contains(err.Error(), "hunter22") {
			t.Errorf("a proxy that %s: the error contains the password", name)
		}
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(porttest.Free(t)))
}

func TestACancelledCallerLeavesTheProxyAtOnce(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := dialBy(t, "http://"+l.Addr().String(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			cancel()
			_, _ = conn.Read(make([]byte, 1))
			close(ended)
			conn.Close()
		}
	}()
	if _, err := d.DialContext(ctx, "tcp", "hooks.example.com:443"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want a cancelled context", err)
	}
	<-ended
}

func TestNewProxyRefuses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "proxy:3128", "socks5://u:hunter22@proxy", "http://", "http://proxy/path", "http://proxy?x=1", "http://u:hunter22@proxy:port", "://hunter22"} {
		if _, err := egress.NewProxy(address, nil); err == nil || strings.Contains(err.Error(), "hunter22") {
			t.Errorf("NewProxy(%q): %v", address, err)
		}
	}
}

func TestMetadataIsOpenedByItsOwnAddressOnly(t *testing.T) {
	t.Parallel()
	for addr, prefixes := range map[string][]string{
		"169.254.169.254": {"169.254.0.0/16", "0.0.0.0/0"}, "169.254.170.2": {"169.254.170.0/30"},
		"100.100.100.200": {"100.64.0.0/10"}, "192.0.0.192": {"192.0.0.0/24"}, "168.63.129.16": {"168.63.0.0/16"},
		"fd00:ec2::254": {"fc00::/7", "fd00:ec2::/64"}, "fd20:ce::254": {"fd00::/8"},
	} {
		single := addr + "/32"
		if strings.Contains(addr, ":") {
			single = addr + "/128"
		}
		for i, cidr := range append(prefixes, single) {
			g := egress.New(egress.Options{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix(cidr)}})
			exact := i == len(prefixes)
			if err := g.Check(t.Context(), addr); errors.Is(err, egress.ErrRefused) == exact {
				t.Errorf("Check(%s) with %s allowed: %v", addr, cidr, err)
			}
			if err := g.Control(map[bool]string{true: "tcp6", false: "tcp4"}[strings.Contains(addr, ":")], net.JoinHostPort(addr, "80"), nil); errors.Is(err, egress.ErrRefused) == exact {
				t.Errorf("Control(%s) with %s allowed: %v", addr, cidr, err)
			}
		}
	}
}
