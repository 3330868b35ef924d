package dispatcher

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/webhook"
	"spendhook/internal/devca"
	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
	"spendhook/internal/redistest"
	"spendhook/subscribers/certificate"
)

// authority issues client certificates.
func authority(t *testing.T) *devca.Authority {
	t.Helper()
	ca, err := devca.New("clients", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// names notes the names in the certificates of its clients.
type names struct {
	*httptest.Server

	last atomic.Value
}

func notingNames(t *testing.T, ca *devca.Authority) *names {
	t.Helper()
	n := &names{}
	n.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		name := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		n.last.Store(name)
	}))
	n.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
	n.StartTLS()
	t.Cleanup(n.Close)
	return n
}

// senderTo trusts the certificate of a receiver on loopback.
func senderTo(receiver *httptest.Server) *webhook.Sender {
	roots := x509.NewCertPool()
	roots.AddCert(receiver.Certificate())
	return webhook.NewSender(webhook.SenderOptions{
		Guard:   egress.New(egress.Options{AllowLoopback: true}),
		Timeout: 10 * time.Second, ConnectTimeout: 10 * time.Second,
		TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	})
}

// proxyTo is a proxy that connects every host but one to the same address.
func proxyTo(t *testing.T, address, except string) *egress.Proxy {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := new(net.Dialer).DialContext(r.Context(), "tcp", address)
		if err != nil || r.Host == except {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer out.Close()
		w.WriteHeader(http.StatusOK)
		in, read, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(out, read); out.Close() }()
		_, _ = io.Copy(in, out)
		in.Close()
	}))
	t.Cleanup(srv.Close)
	proxy, err := egress.NewProxy(srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	return proxy
}

// present has the company or one of its subscribers present a client certificate with that name.
func (h *harness) present(to *certificate.Store, ca *devca.Authority, name string) {
	h.t.Helper()
	pair, err := ca.Issue(devca.Leaf{
		Name: name, Usage: x509.ExtKeyUsageClientAuth, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	})
	if err == nil {
		_, err = to.Set(h.t.Context(), h.company, certificate.Input{Chain: string(pair.Cert), PrivateKey: string(pair.Key)})
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// A subscriber's own certificate is presented instead of the company's.
func TestASubscribersOwnCertificateIsUsed(t *testing.T) {
	t.Parallel()
	ofTwoReplicas(t, usesOwnCertificate)
}

// usesOwnCertificate has the second replica set what the first one uses.
func usesOwnCertificate(t *testing.T, clients [2]redis.UniversalClient, companies ...uuid.UUID) {
	t.Helper()
	ca := authority(t)
	receiver := notingNames(t, ca)
	h := build(t, clients[0], func(o *Options) { o.Sender = senderTo(receiver.Server) })
	other := build(t, clients[1], nil)
	h.company, other.company = companies[0], companies[0]
	h.start()
	sub := h.subscribe(receiver.URL)
	takenFor := func(want string) {
		t.Helper()
		h.reaches(h.emit(1)[0], sub, delivery.StatusDelivered)
		if got := receiver.last.Load(); got != want {
			t.Errorf("the receiver saw %v, want %s", got, want)
		}
	}
	for _, c := range []struct {
		name  string
		store *certificate.Store
	}{{"ours", other.opts.Certificates}, {"its own", other.opts.Certificates.Of(sub.UUID)}} {
		other.present(c.store, ca, c.name)
		takenFor(c.name)
	}
	if err := other.opts.Certificates.Of(sub.UUID).Remove(t.Context(), h.company); err != nil {
		t.Fatal(err)
	}
	takenFor("ours")
}

// Each attempt uses the certificate that is stored at that moment, and none after its
// removal.
func TestCertificateAppliesToTheNextAttempt(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	receiver := notingNames(t, ca)
	h := build(t, redistest.New(t), func(o *Options) { o.Sender = senderTo(receiver.Server) })
	h.start()
	sub := h.subscribe(receiver.URL)
	takenFor := func() any {
		h.reaches(h.emit(1)[0], sub, delivery.StatusDelivered)
		return receiver.last.Load()
	}
	for _, name := range []string{"first", "second"} {
		h.present(h.opts.Certificates, ca, name)
		if got := takenFor(); got != name {
			t.Errorf("the receiver saw the names %v, want %q", got, name)
		}
	}
	if err := h.opts.Certificates.Remove(t.Context(), h.company); err != nil {
		t.Fatal(err)
	}
	if got := takenFor(); got != "nobody" {
		t.Errorf("the receiver saw the names %v after the removal", got)
	}
}

// A host name that now resolves to a private address: the attempt makes no connection and
// is recorded as refused_address.
func TestAttemptToARebindingNameIsRefused(t *testing.T) {
	t.Parallel()
	var accepted atomic.Int64
	inside := httptest.NewUnstartedServer(nil)
	inside.Config.ConnState = func(net.Conn, http.ConnState) { accepted.Add(1) }
	inside.Start()
	t.Cleanup(inside.Close)
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	guard := egress.New(egress.Options{Resolver: dnstest.Resolver(t, "127.0.0.1")})
	h := build(t, redistest.New(t), func(o *Options) {
		o.Sender = webhook.NewSender(webhook.SenderOptions{Guard: guard, Timeout: 10 * time.Second, ConnectTimeout: 10 * time.Second})
	})
	h.start()
	sub := h.subscribe("http://rebind.example.com:" + port + "/hook")
	d := h.reaches(h.emit(1)[0], sub, delivery.StatusDead)
	if len(d.Attempts) != 4 || d.Attempts[0].Error != string(attempt.ClassRefusedAddress) || accepted.Load() != 0 {
		t.Errorf("%+v, %d connections", d.Attempts, accepted.Load())
	}
	result, err := h.inspector.Test(t.Context(), h.company, sub.UUID)
	if err != nil || result.Attempt.Error != string(attempt.ClassRefusedAddress) || accepted.Load() != 0 {
		t.Errorf("a test delivery: %+v, %v, %d connections", result, err, accepted.Load())
	}
}

// A receiver that the proxy cannot reach does not delay deliveries to other receivers.
func TestAProxyKeepsReceiversApart(t *testing.T) {
	t.Parallel()
	inbox := receive(t, nil)
	proxy := proxyTo(t, inbox.Listener.Addr().String(), "dead.example.com:80")
	h := build(t, redistest.New(t), func(o *Options) {
		o.Sender = webhook.NewSender(webhook.SenderOptions{Guard: egress.New(egress.Options{}), Proxy: proxy, Timeout: 10 * time.Second, ConnectTimeout: 10 * time.Second})
	})
	h.start()
	dead, alive := h.subscribe("http://dead.example.com/"), h.subscribe("http://alive.example.com/")
	for i, id := range h.emit(30) {
		d := h.reaches(id, alive, delivery.StatusDelivered)
		if d.Count != 1 {
			t.Errorf("delivery %d took %d attempts", i, d.Count)
		}
	}
	eventually(t, func() bool {
		stats, err := h.Deliveries.Stats(t.Context(), h.company, dead.UUID)
		return err == nil && stats[0].Total == 30
	}, "all of them are dispatched")
	if got := len(inbox.ids()); got != 30 {
		t.Errorf("%d received", got)
	}
	h.stop(5 * time.Second)
	h.opts.Sender.Close()
}
