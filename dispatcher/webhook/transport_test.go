package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/devca"
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
	c, err := certificate.New(redistest.New(t), sealtest.Keyring(), nil).Set(t.Context(), uuid.New(), certificate.Input{Chain: string(pair.Cert), PrivateKey: string(pair.Key)})
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
		s.transports.plain.CloseIdleConnections()
		for _, tr := range s.transports.certified.Values() {
			tr.CloseIdleConnections()
		}
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
	// The same certificate of another company has connections of its own.
	again := companies["one"]
	again.Company = uuid.New()
	before := s.transports.certified.Len()
	if res := s.Send(t.Context(), again); string(res.ResponseBody) != "one" || s.transports.certified.Len() != before+1 {
		t.Errorf("%v, %d pools after %d", res.Err, s.transports.certified.Len(), before)
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

func TestThePoolsOfCertificatesAreBounded(t *testing.T) {
	t.Parallel()
	receiver, trust := newStrict(t, tls.VerifyClientCertIfGiven)
	s := newTestSender(t, trust)
	s.transports.certified.Resize(2)
	c := receiver.certificate(t, "many")
	for range 5 {
		r := requestTo(t, receiver.URL)
		r.Company, r.Certificate = uuid.New(), c
		if res := s.Send(t.Context(), r); string(res.ResponseBody) != "many" {
			t.Error(res.Err)
		}
	}
	if n := s.transports.certified.Len(); n != 2 {
		t.Errorf("%d pools, want 2", n)
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
