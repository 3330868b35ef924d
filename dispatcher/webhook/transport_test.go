package webhook

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/net/http2"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/internal/devca"
	"spendhook/internal/egress"
	"spendhook/internal/redistest"
	"spendhook/internal/seal/sealtest"
	"spendhook/subscribers/certificate"
)

// strict is a receiver that asks for client certificates of its authority; it
// answers with the name in the one it got, and counts connections by it.
type strict struct {
	*httptest.Server
	ca    *devca.Authority
	mu    sync.Mutex
	conns map[string]map[string]bool // name to remote addresses
}

func newStrict(t *testing.T, mode tls.ClientAuthType) (*strict, func(*SenderOptions)) {
	t.Helper()
	now := time.Now()
	ca, err := devca.New("clients", now.Add(-time.Hour), now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	s := &strict{ca: ca, conns: map[string]map[string]bool{}}
	_, trust := secureReceiver(t, s.serve, func(srv *httptest.Server) {
		s.Server = srv
		srv.EnableHTTP2 = true
		srv.TLS = &tls.Config{ClientAuth: mode, ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
	})
	return s, trust
}

func (s *strict) serve(w http.ResponseWriter, r *http.Request) {
	name := "nobody"
	if len(r.TLS.PeerCertificates) > 0 {
		name = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	s.mu.Lock()
	if s.conns[name] == nil {
		s.conns[name] = map[string]bool{}
	}
	s.conns[name][r.RemoteAddr] = true
	s.mu.Unlock()
	w.WriteHeader(http.StatusTeapot) // the answer to a success is not kept
	_, _ = io.WriteString(w, name)
}

// certificate stores one for a company and reads it back, as a registry does.
func (s *strict) certificate(t *testing.T, name string) *certificate.Certificate {
	t.Helper()
	pair, err := s.ca.Issue(devca.Leaf{
		Name: name, Usage: x509.ExtKeyUsageClientAuth,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := certificate.New(certificate.Options{Client: redistest.New(t), Keyring: sealtest.Keyring()}).Set(t.Context(), uuid.New(), certificate.Input{Chain: string(pair.Cert), PrivateKey: string(pair.Key)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEachCompanyShowsItsOwnCertificate(t *testing.T) {
	t.Parallel()
	receiver, trust := newStrict(t, tls.VerifyClientCertIfGiven)
	s := newTestSender(t, trust)
	one, two := receiver.certificate(t, "one"), receiver.certificate(t, "two")
	companies := map[string]Request{}
	for name, c := range map[string]*certificate.Certificate{"one": one, "two": two, "nobody": nil} {
		r := requestTo(t, receiver.URL)
		r.Company, r.Certificate = uuid.New(), c
		companies[name] = r
	}
	for range 3 { // also over connections that are kept and sessions that are resumed
		for name, r := range companies {
			if res := s.Send(t.Context(), r); string(res.ResponseBody) != name {
				t.Errorf("%s is taken for %q: %v", name, res.ResponseBody, res.Err)
			}
		}
		s.Close()
	}
	owner := map[string]string{}
	for name, addresses := range receiver.conns {
		for address := range addresses {
			if other := owner[address]; other != "" {
				t.Errorf("%s and %s share a connection", name, other)
			}
			owner[address] = name
		}
	}
	changed := companies["one"]
	changed.Certificate = two
	if res := s.Send(t.Context(), changed); string(res.ResponseBody) != "two" {
		t.Errorf("after a change of the certificate: %q %v", res.ResponseBody, res.Err)
	}
	// The same certificate of another company has connections of its own.
	again := companies["one"]
	again.Company = uuid.New()
	if res := s.Send(t.Context(), companies["one"]); string(res.ResponseBody) != "one" {
		t.Error(res.Err)
	}
	before := len(receiver.conns["one"])
	if res := s.Send(t.Context(), again); string(res.ResponseBody) != "one" || len(receiver.conns["one"]) != before+1 {
		t.Errorf("%v, %d connections after %d", res.Err, len(receiver.conns["one"]), before)
	}
}

func TestAReceiverThatWantsACertificateRefusesOthers(t *testing.T) {
	t.Parallel()
	receiver, trust := newStrict(t, tls.RequireAndVerifyClientCert)
	s := newTestSender(t, trust)
	// How the refusal looks depends on who closes first: in TLS 1.3 the client
	// has finished its handshake when the server reads the certificate.
	without := requestTo(t, receiver.URL)
	if res := s.Send(t.Context(), without); res.Success() || res.StatusCode != 0 {
		t.Errorf("without a certificate: %+v", res)
	}
	stranger, _ := newStrict(t, tls.NoClientCert)
	wrong := without
	wrong.Certificate = stranger.certificate(t, "stranger")
	if res := s.Send(t.Context(), wrong); res.Success() || res.StatusCode != 0 {
		t.Errorf("with another authority's: %+v", res)
	}
	right := without
	right.Certificate = receiver.certificate(t, "right")
	if res := s.Send(t.Context(), right); string(res.ResponseBody) != "right" || len(receiver.conns) != 1 {
		t.Errorf("with the right one: %q %v; received from %v", res.Class, res.Err, receiver.conns)
	}
}

// A receiver with TLS 1.2 may ask for the certificate only after it has read the request.
func TestAReceiverMayAskForTheCertificateByRenegotiation(t *testing.T) {
	t.Parallel()
	clients, _ := newStrict(t, tls.NoClientCert)
	pair, err := clients.ca.Issue(devca.Leaf{
		Name: "receiver", Hosts: []string{"127.0.0.1"}, Usage: x509.ExtKeyUsageServerAuth,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"cert": pair.Cert, "key": pair.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// net/http does not renegotiate as a server.
	receiver := exec.CommandContext(t.Context(), "openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", "cert", "-key", "key", "-tls1_2", "-naccept", "1")
	receiver.Dir = dir
	commands, err := receiver.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	printed, err := receiver.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	receiver.Stderr = receiver.Stdout
	if err := receiver.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = receiver.Wait() })
	var all strings.Builder
	lines := bufio.NewScanner(printed)
	until := func(text string) string {
		for lines.Scan() {
			all.WriteString(lines.Text())
			if strings.Contains(lines.Text(), text) {
				return lines.Text()
			}
		}
		return ""
	}
	r := requestTo(t, "https://"+strings.TrimPrefix(until("ACCEPT "), "ACCEPT "))
	r.Certificate = clients.certificate(t, "one")
	var talk sync.WaitGroup
	talk.Go(func() {
		until("POST / HTTP/1.1")
		_, _ = io.WriteString(commands, "R\n") // renegotiate, and ask for a certificate
		until("SSL_do_handshake -> 1")
		_, _ = io.WriteString(commands, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\nQ\n")
		until("everything")
	})
	s := newTestSender(t, func(o *SenderOptions) { o.TLS = &tls.Config{RootCAs: clients.ca.Pool(), MinVersion: tls.VersionTLS12} })
	if res := s.Send(t.Context(), r); !res.Success() {
		t.Errorf("class %q: %v", res.Class, res.Err)
	}
	talk.Wait()
	if !strings.Contains(all.String(), "CN = one") {
		t.Errorf("no certificate was shown: %s", all.String())
	}
}

// A receiver of one company that does not read, or that has taken all streams, does not stall
// another company's.
func TestCompaniesShareNoConnection(t *testing.T) {
	t.Parallel()
	address, trust, opened := countingReceiver(t, accepting, func(s *httptest.Server) { s.EnableHTTP2 = true })
	s := newTestSender(t, trust)
	for range 2 {
		for company := range 3 {
			r := requestTo(t, address)
			r.Company = uuid.UUID{15: byte(company)}
			if res := s.Send(t.Context(), r); !res.Success() {
				t.Error(res.Err)
			}
		}
	}
	if n := opened.Load(); n != 3 {
		t.Errorf("%d connections for three companies", n)
	}
}

// Under steady traffic too, an address is looked up again.
func TestConnectionsHaveAMaximumAge(t *testing.T) {
	t.Parallel()
	address, trust, opened := countingReceiver(t, accepting, nil)
	at := time.Unix(1_800_000_000, 0)
	s := newTestSender(t, func(o *SenderOptions) { trust(o); o.Now = func() time.Time { return at } })
	s.transport.maxAge = maxAge
	for range 120 {
		if res := s.Send(t.Context(), requestTo(t, address)); !res.Success() {
			t.Fatal(res.Err)
		}
		at = at.Add(time.Second)
	}
	if n := opened.Load(); n < 2 || n > 3 {
		t.Errorf("%d connections in two minutes", n)
	}
}

func TestChangedNetworksApplyToOpenConnections(t *testing.T) {
	t.Parallel()
	guard := egress.New(egress.Options{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	s := newTestSender(t, func(o *SenderOptions) { o.Guard = guard })
	r := requestTo(t, listening(t, accepting))
	if res := s.Send(t.Context(), r); !res.Success() {
		t.Fatal(res.Err)
	}
	guard.Allow(nil)
	if res := s.Send(t.Context(), r); res.Class != attempt.ClassRefusedAddress {
		t.Errorf("class %q: %v", res.Class, res.Err)
	}
}

// http2Receiver calls request for the headers of each request by HTTP/2, until it returns false, and
// counts the connections in all and those by HTTP/2. By HTTP/1.1 it answers with h.
func http2Receiver(t *testing.T, h http.HandlerFunc, request func(*http2.Framer, uint32) bool) (address string, trust func(*SenderOptions), all, h2 *atomic.Int64) {
	t.Helper()
	all, h2 = new(atomic.Int64), new(atomic.Int64)
	address, trust = secureReceiver(t, h, func(s *httptest.Server) {
		s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				all.Add(1)
			}
		}
		s.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){"h2": func(_ *http.Server, conn *tls.Conn, _ http.Handler) {
			h2.Add(1)
			_, _ = io.CopyN(io.Discard, conn, int64(len(http2.ClientPreface)))
			framer := http2.NewFramer(conn, conn)
			_ = framer.WriteSettings()
			for {
				frame, err := framer.ReadFrame()
				if err != nil {
					return
				}
				if headers, ok := frame.(*http2.HeadersFrame); ok && !request(framer, headers.StreamID) {
					return
				}
			}
		}}
	})
	return address, trust, all, h2
}

func reset(f *http2.Framer, id uint32, code http2.ErrCode) bool {
	return f.WriteRSTStream(id, code) == nil
}

// leave closes the connection as a server does that ends.
func leave(f *http2.Framer, code http2.ErrCode) bool {
	_ = f.WriteGoAway(0, code, nil)
	return false
}

// refusals are the ways to refuse HTTP/2.
var refusals = map[string]func(*http2.Framer, uint32) bool{
	"stream":     func(f *http2.Framer, id uint32) bool { return reset(f, id, http2.ErrCodeHTTP11Required) },
	"connection": func(f *http2.Framer, _ uint32) bool { return leave(f, http2.ErrCodeHTTP11Required) },
}

func TestAReceiverThatRefusesHTTP2IsSentHTTP1(t *testing.T) {
	t.Parallel()
	for name, refuse := range refusals {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, trust, all, h2 := http2Receiver(t, accepting, refuse)
			s := newTestSender(t, trust)
			for range 3 {
				if res := s.Send(t.Context(), requestTo(t, address)); !res.Success() {
					t.Errorf("class %q: %v", res.Class, res.Err)
				}
			}
			if all.Load() != 2 || h2.Load() != 1 {
				t.Errorf("%d connections, %d by HTTP/2", all.Load(), h2.Load())
			}
		})
	}
}

func TestTheClassSaysWhatAnHTTP2ReceiverDid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request func(*http2.Framer, uint32) bool
		want    attempt.ErrorClass
	}{
		"resets the stream":  {func(f *http2.Framer, id uint32) bool { return reset(f, id, http2.ErrCodeInternal) }, attempt.ClassReset},
		"leaves":             {func(f *http2.Framer, _ uint32) bool { return leave(f, http2.ErrCodeInternal) }, attempt.ClassReset},
		"closes":             {func(*http2.Framer, uint32) bool { return false }, attempt.ClassReset},
		"never answers":      {func(*http2.Framer, uint32) bool { return true }, attempt.ClassTimeout},
		"breaks the framing": {func(f *http2.Framer, id uint32) bool { return f.WriteRawFrame(http2.FrameSettings, 0, id, nil) == nil }, attempt.ClassProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, trust, _, _ := http2Receiver(t, accepting, test.request)
			s := newTestSender(t, trust)
			if test.want == attempt.ClassTimeout { // net/http's ping ends the connection before the attempt has timed out
				s.transport.HTTP2.SendPingTimeout, s.transport.HTTP2.PingTimeout = 50*time.Millisecond, 50*time.Millisecond
			}
			if res := s.Send(t.Context(), requestTo(t, address)); res.Class != test.want {
				t.Errorf("class %q, want %q: %v", res.Class, test.want, res.Err)
			}
		})
	}
}

func TestHeaderValuesThatAReceiverRepeatsAreNotKept(t *testing.T) {
	t.Parallel()
	address := listening(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, "you sent "+r.Header.Get("Authorization")+" and again hunter22-and-more, in "+r.Header.Get("X-Short"))
	})
	r := requestTo(t, address)
	r.Headers = http.Header{"Authorization": {"Bearer hunter22-and-more"}, "X-Short": {"ai"}}
	res := newTestSender(t, nil).Send(t.Context(), r)
	if got, want := string(res.ResponseBody), "you sent [redacted] and again [redacted], in ai"; got != want {
		t.Errorf("kept %q, want %q", got, want)
	}
	// Also where the kept part ends within a value.
	edge := strings.Repeat("x", maxStoredBody-5)
	address = listening(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, edge+r.Header.Get("Authorization"))
	})
	r.URL = requestTo(t, address).URL
	if res := newTestSender(t, nil).Send(t.Context(), r); string(res.ResponseBody) != edge+"[reda" {
		t.Error("the beginning of a value is kept")
	}
}
