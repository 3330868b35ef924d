package webhook

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
)

const publicAddress = "93.184.216.34"

// insiders are addresses of every family that a delivery must not reach, with
// the family.
var insiders = map[string]string{
	"127.0.0.1": "loopback", "::1": "IPv6 loopback", "0.0.0.0": "this host", "::": "unspecified",
	"10.1.2.3": "private", "172.16.0.1": "private", "192.168.1.1": "private", "fd00::1": "unique local",
	"100.64.0.1": "carrier-grade NAT", "169.254.1.1": "link-local", "fe80::1": "IPv6 link-local",
	"169.254.169.254": "metadata", "100.100.100.200": "metadata of Alibaba", "168.63.129.16": "metadata of Azure", "fd00:ec2::254": "metadata of AWS",
	"::ffff:127.0.0.1": "v4-mapped", "::127.0.0.1": "v4-compatible",
	"64:ff9b::7f00:1": "NAT64", "64:ff9b:1::7f00:1": "local NAT64", "2002:7f00:1::": "6to4", "2001:0:4136:e378::1": "Teredo",
	"224.0.0.1": "multicast", "ff02::1": "IPv6 multicast", "255.255.255.255": "broadcast", "198.18.0.1": "benchmarking",
}

// insideListener listens on all loopback addresses, on one port, and counts connections.
func insideListener(t *testing.T) (port string, accepted *atomic.Int64) {
	t.Helper()
	accepted = new(atomic.Int64)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // after the listeners are closed
	port = "0"
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), network, ":"+port)
		if network == "tcp6" && err != nil {
			continue // a machine without IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				accepted.Add(1)
				conn.Close()
			}
		})
		t.Cleanup(func() { l.Close() })
	}
	return port, accepted
}

// A name that resolved to a public address at registration and now resolves to an internal
// one: no attempt connects, whatever the address family.
func TestARebindingNameReachesNoInternalAddress(t *testing.T) {
	t.Parallel()
	port, accepted := insideListener(t)
	for addr, family := range insiders {
		resolver := dnstest.Resolver(t, publicAddress, addr)
		guard := egress.New(egress.Options{Resolver: resolver})
		if err := guard.Check(t.Context(), "rebind.example.com."); err != nil {
			t.Fatalf("%s: before the rebinding: %v", family, err)
		}
		s := newTestSender(t, func(o *SenderOptions) { o.Guard = guard })
		for _, scheme := range []string{"http", "https"} {
			res := s.Send(t.Context(), requestTo(t, scheme+"://rebind.example.com.:"+port+"/hook"))
			if res.Class != attempt.ClassRefusedAddress || res.StatusCode != 0 {
				t.Errorf("%s by %s: %q %v", family, scheme, res.Class, res.Err)
			}
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
	// The listener does count.
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 1))
	conn.Close()
	if accepted.Load() != 1 {
		t.Error("the listener misses connections")
	}
}

// A literal internal address in a URL is refused at the connection, for example after a
// change of settings.
func TestLiteralInternalAddressesAreRefusedAtTheConnection(t *testing.T) {
	t.Parallel()
	port, accepted := insideListener(t)
	s := newTestSender(t, func(o *SenderOptions) { o.Guard = egress.New(egress.Options{Resolver: dnstest.Resolver(t)}) })
	hosts := []string{"2130706433", "0x7f000001", "0X7F.1", "017700000001", "127.1", "0177.0.0.1", "127.0.0.1.", "localhost"}
	for addr := range insiders {
		hosts = append(hosts, addr)
	}
	for _, host := range hosts {
		r := requestTo(t, "http://example.com/")
		r.URL = &url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: "/"}
		if res := s.Send(t.Context(), r); res.Class != attempt.ClassRefusedAddress && res.Class != attempt.ClassDNS {
			t.Errorf("%s: %q %v", host, res.Class, res.Err)
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

func TestRedirectsReachNoInternalAddress(t *testing.T) {
	t.Parallel()
	port, accepted := insideListener(t)
	for addr := range insiders {
		for code := 301; code <= 308; code++ {
			receiver := listening(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "http://"+net.JoinHostPort(addr, port)+"/")
				w.WriteHeader(code)
			})
			u, _ := url.Parse(receiver)
			allowed := netip.PrefixFrom(netip.MustParseAddr(u.Hostname()), 32)
			s := newTestSender(t, func(o *SenderOptions) { o.Guard = egress.New(egress.Options{AllowCIDRs: []netip.Prefix{allowed}}) })
			if res := s.Send(t.Context(), requestTo(t, receiver)); res.Class != attempt.ClassRedirect {
				t.Errorf("%d to %s: %q %v", code, addr, res.Class, res.Err)
			}
			if code == 303 {
				code = 306 // 304 to 306 are no redirects
			}
		}
	}
	if n := accepted.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
}

// tunnel is a proxy that resolves every name to the receiver.
func tunnel(t *testing.T, to string, answer func(host string) int) *egress.Proxy {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code := http.StatusOK
		if answer != nil {
			code = answer(r.Host)
		}
		if code != http.StatusOK {
			w.WriteHeader(code)
			return
		}
		out, err := new(net.Dialer).DialContext(r.Context(), "tcp", to)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(code)
		in, read, err := w.(http.Hijacker).Hijack()
		if err != nil {
			out.Close()
			return
		}
		go func() { _, _ = io.Copy(out, read); out.Close() }() // the server may have read a byte already
		_, _ = io.Copy(in, out)
		in.Close()
	}))
	t.Cleanup(srv.Close)
	p, err := egress.NewProxy(srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Through a proxy, TLS and the client certificate work end to end.
func TestAProxyCarriesTLSFromEndToEnd(t *testing.T) {
	t.Parallel()
	receiver, trust := newStrict(t, tls.RequireAndVerifyClientCert)
	u, _ := url.Parse(receiver.URL)
	s := newTestSender(t, func(o *SenderOptions) {
		trust(o)
		o.Guard = egress.New(egress.Options{})
		o.Proxy = tunnel(t, u.Host, nil)
	})
	t.Cleanup(s.Close)                            // before the tunnel waits for its connections
	r := requestTo(t, "https://example.com/hook") // a name in the certificate of httptest
	r.Certificate = receiver.certificate(t, "us")
	if res := s.Send(t.Context(), r); string(res.ResponseBody) != "us" {
		t.Errorf("%q %v %s", res.Class, res.Err, res.ResponseBody)
	}
	other := r
	other.URL = requestTo(t, "https://other.example.net/hook").URL
	if res := s.Send(t.Context(), other); res.Class != attempt.ClassTLS {
		t.Errorf("a receiver of another name: %q %v", res.Class, res.Err)
	}
	inside := r
	inside.URL = requestTo(t, "https://127.0.0.1/hook").URL
	if res := s.Send(t.Context(), inside); res.Class != attempt.ClassRefusedAddress {
		t.Errorf("a literal address: %q %v", res.Class, res.Err)
	}
}

func TestFaultsOfAProxyHaveTheirClass(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]attempt.ErrorClass{
		http.StatusProxyAuthRequired: attempt.ClassProxyRefused, http.StatusForbidden: attempt.ClassProxyRefused, http.StatusGatewayTimeout: attempt.ClassProxyRefused,
	} {
		s := newTestSender(t, func(o *SenderOptions) { o.Proxy = tunnel(t, "", func(string) int { return code }) })
		if res := s.Send(t.Context(), requestTo(t, "https://hooks.example.com/")); res.Class != want {
			t.Errorf("%d: %q %v, want %q", code, res.Class, res.Err, want)
		}
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent, err := egress.NewProxy("http://"+l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newTestSender(t, func(o *SenderOptions) { o.Proxy, o.ConnectTimeout = silent, 100*time.Millisecond })
	if res := s.Send(t.Context(), requestTo(t, "https://hooks.example.com/")); res.Class != attempt.ClassConnectTimeout {
		t.Errorf("a proxy that does not answer: %q %v", res.Class, res.Err)
	}
	l.Close()
	if res := s.Send(t.Context(), requestTo(t, "https://hooks.example.com/")); res.Class != attempt.ClassProxy {
		t.Errorf("a proxy that is not there: %q %v", res.Class, res.Err)
	}
}
