package peer_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"spendhook/internal/clientcert"
	"spendhook/internal/devca"
	"spendhook/internal/peer"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

func request(from string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = from
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func TestAddressIsTheLastHopThatIsNoProxy(t *testing.T) {
	t.Parallel()
	p := peer.New(peer.Options{Proxies: proxies})
	const client = "203.0.113.9"
	for name, tc := range map[string]struct {
		from string
		hops []string
		want string
	}{
		"direct":                   {client + ":1", nil, client},
		"IPv4 in IPv6":             {"[::ffff:203.0.113.9]:1", nil, client},
		"IPv6 with a zone":         {"[fe80::1%eth0]:1", nil, "fe80::1"},
		"claimed by a stranger":    {client + ":1", []string{"198.51.100.1"}, client},
		"one proxy":                {"10.0.0.1:1", []string{client}, client},
		"proxy in IPv6":            {"[fd00::1]:1", []string{client}, client},
		"proxy as IPv4 in IPv6":    {"[::ffff:10.0.0.1]:1", []string{client}, client},
		"claimed through a proxy":  {"10.0.0.1:1", []string{"198.51.100.1, " + client}, client},
		"two proxies":              {"10.0.0.1:1", []string{"198.51.100.1, " + client + ", 10.0.0.2"}, client},
		"two lines":                {"10.0.0.1:1", []string{"198.51.100.1", client + ",10.0.0.2"}, client},
		"with a port":              {"10.0.0.1:1", []string{client + ":4711"}, client},
		"IPv6 with a port":         {"10.0.0.1:1", []string{"[2001:db8::1]:4711"}, "2001:db8::1"},
		"IPv6 in brackets":         {"10.0.0.1:1", []string{"[2001:db8::1]"}, "2001:db8::1"},
		"no header":                {"10.0.0.1:1", nil, "10.0.0.1"},
		"nonsense":                 {"10.0.0.1:1", []string{"unknown"}, "10.0.0.1"},
		"nonsense before a proxy":  {"10.0.0.1:1", []string{client + ", unknown, 10.0.0.2"}, "10.0.0.2"},
		"all of them are proxies":  {"10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		"no address at all (unix)": {"@", []string{client}, "invalid IP"},
	} {
		r := request(tc.from)
		r.Header["X-Forwarded-For"] = tc.hops
		r, err := p.Resolve(r)
		if got := peer.Address(r.Context()).String(); got != tc.want || err != nil {
			t.Errorf("%s: %s, want %s (%v)", name, got, tc.want, err)
		}
		if len(r.Header) > 0 {
			t.Errorf("%s: left %v", name, r.Header)
		}
	}
	if peer.Address(t.Context()).IsValid() {
		t.Error("an address from nowhere")
	}
}

func authority(t *testing.T) *devca.Authority {
	t.Helper()
	ca, err := devca.New("test CA", time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *devca.Authority) *x509.Certificate {
	t.Helper()
	pair, err := ca.Issue(devca.Leaf{
		Name: "client", Usage: x509.ExtKeyUsageClientAuth, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf
}

func rfc9440(cert *x509.Certificate) string {
	return ":" + base64.StdEncoding.EncodeToString(cert.Raw) + ":"
}

func xfcc(cert *x509.Certificate) string {
	return `Cert="` + url.PathEscape(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))) + `"`
}

func TestCertificateComesFromProxiesOnly(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	cert, foreign := issue(t, ca), issue(t, authority(t))
	const proxy, stranger = "10.0.0.1:1", "192.0.2.1:1"
	for name, tc := range map[string]struct {
		form    peer.Header
		noCA    bool
		from    string
		headers []string
		want    *x509.Certificate
		err     error
	}{
		"RFC 9440":              {from: proxy, headers: []string{"Client-Cert", rfc9440(cert)}, want: cert},
		"XFCC":                  {form: peer.XFCC, from: proxy, headers: []string{"X-Forwarded-Client-Cert", xfcc(cert)}, want: cert},
		"none":                  {from: proxy},
		"the other header":      {from: proxy, headers: []string{"X-Forwarded-Client-Cert", xfcc(cert)}},
		"the other header too":  {form: peer.XFCC, from: proxy, headers: []string{"Client-Cert", rfc9440(cert)}},
		"spoofed":               {from: stranger, headers: []string{"Client-Cert", rfc9440(cert), "Client-Cert-Chain", rfc9440(cert)}},
		"spoofed XFCC":          {form: peer.XFCC, from: stranger, headers: []string{"X-Forwarded-Client-Cert", xfcc(cert)}},
		"spoofed and malformed": {from: stranger, headers: []string{"Client-Cert", "x"}},
		"malformed":             {from: proxy, headers: []string{"Client-Cert", "x"}, err: peer.ErrMalformed},
		"malformed XFCC":        {form: peer.XFCC, from: proxy, headers: []string{"X-Forwarded-Client-Cert", "x"}, err: peer.ErrMalformed},
		"twice":                 {from: proxy, headers: []string{"Client-Cert", rfc9440(cert), "Client-Cert", rfc9440(cert)}, err: peer.ErrMalformed},
		"foreign":               {from: proxy, headers: []string{"Client-Cert", rfc9440(foreign)}, err: peer.ErrUntrusted},
		"foreign XFCC":          {form: peer.XFCC, from: proxy, headers: []string{"X-Forwarded-Client-Cert", xfcc(foreign)}, err: peer.ErrUntrusted},
		"verified by the proxy": {noCA: true, from: proxy, headers: []string{"Client-Cert", rfc9440(foreign)}, want: foreign},
	} {
		o := peer.Options{Proxies: proxies, Header: tc.form}
		if !tc.noCA {
			o.Authorities = ca.Pool
		}
		r, err := peer.New(o).Resolve(request(tc.from, tc.headers...))
		if got := clientcert.From(r.Context()); !errors.Is(err, tc.err) || (got == nil) != (tc.want == nil) || (got != nil && !got.Equal(tc.want)) {
			t.Errorf("%s: got a certificate: %v, error %v", name, got != nil, err)
		}
		if len(r.Header) > 0 {
			t.Errorf("%s: left %v", name, r.Header)
		}
		if !peer.Address(r.Context()).IsValid() {
			t.Errorf("%s: no address", name)
		}
	}
}

func TestCertificateOfTheConnection(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	cert := issue(t, ca)
	pool, clock := ca.Pool(), time.Now()
	p := peer.New(peer.Options{Proxies: proxies, Authorities: func() *x509.CertPool { return pool }, Now: func() time.Time { return clock }})
	ask := func(from string) (*x509.Certificate, error) {
		r := request(from)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		r, err := p.Resolve(r)
		return clientcert.From(r.Context()), err
	}
	if got, err := ask("192.0.2.1:1"); got != cert || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ask("10.0.0.1:1"); got != nil || err != nil {
		t.Errorf("a proxy's own certificate is taken for a client's: %v, %v", got, err)
	}
	clock = clock.Add(2 * time.Hour)
	if got, err := ask("192.0.2.1:1"); got != nil || !errors.Is(err, peer.ErrUntrusted) {
		t.Errorf("expired while connected: %v, %v", got, err)
	}
	clock = clock.Add(-2 * time.Hour)
	pool = authority(t).Pool()
	if got, err := ask("192.0.2.1:1"); got != nil || !errors.Is(err, peer.ErrUntrusted) {
		t.Errorf("no longer trusted while connected: %v, %v", got, err)
	}
	pool = nil
	if got, err := ask("192.0.2.1:1"); got != nil || err != nil {
		t.Errorf("not verified, without authorities: %v, %v", got, err)
	}
}

func TestRefuseClear(t *testing.T) {
	t.Parallel()
	p := peer.New(peer.Options{Proxies: proxies, RefuseClear: true})
	for from, want := range map[string]error{
		"192.0.2.1:1": peer.ErrInClear, "@": peer.ErrInClear, "10.0.0.1:1": nil, "127.0.0.1:1": nil, "[::1]:1": nil,
	} {
		if _, err := p.Resolve(request(from)); !errors.Is(err, want) {
			t.Errorf("%s: %v", from, err)
		}
	}
	r := request("192.0.2.1:1")
	r.TLS = &tls.ConnectionState{}
	if _, err := p.Resolve(r); err != nil {
		t.Errorf("with TLS: %v", err)
	}
}
