package servertls_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"spendhook/internal/devca"
	"spendhook/internal/servertls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// home is a directory with a server's files and the authority behind them.
type home struct {
	t        *testing.T
	dir      string
	ca       *devca.Authority
	log      *logBuffer
	registry *prometheus.Registry
	address  string
}

type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) count(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), what)
}

func newHome(t *testing.T) *home {
	t.Helper()
	h := &home{t: t, dir: t.TempDir(), ca: authority(t), log: &logBuffer{}, registry: prometheus.NewRegistry()}
	h.write("ca.pem", h.ca.PEM())
	h.install(h.issue("one", x509.ExtKeyUsageServerAuth))
	return h
}

func authority(t *testing.T) *devca.Authority {
	t.Helper()
	ca, err := devca.New("test CA", time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (h *home) issue(name string, usage x509.ExtKeyUsage, edit ...func(*devca.Leaf)) devca.Pair {
	h.t.Helper()
	return issueBy(h.t, h.ca, name, usage, edit...)
}

func issueBy(t *testing.T, ca *devca.Authority, name string, usage x509.ExtKeyUsage, edit ...func(*devca.Leaf)) devca.Pair {
	t.Helper()
	leaf := devca.Leaf{
		Name: name, Hosts: []string{"127.0.0.1"}, Usage: usage,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	for _, e := range edit {
		e(&leaf)
	}
	pair, err := ca.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// write replaces a file as an editor does, whole.
func (h *home) write(name string, text []byte) {
	h.t.Helper()
	temp := filepath.Join(h.dir, ".new-"+name)
	if err := errors.Join(os.WriteFile(temp, text, 0o600), os.Rename(temp, filepath.Join(h.dir, name))); err != nil {
		h.t.Fatal(err)
	}
}

func (h *home) install(pair devca.Pair) {
	h.t.Helper()
	h.write("key.pem", pair.Key)
	h.write("cert.pem", pair.Cert)
}

func (h *home) options() servertls.Options {
	return servertls.Options{
		CertFile: filepath.Join(h.dir, "cert.pem"), KeyFile: filepath.Join(h.dir, "key.pem"), ClientCAFile: filepath.Join(h.dir, "ca.pem"),
		Every: 2 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(h.log, nil)), Registerer: h.registry,
	}
}

// start serves on loopback. It sends one byte on each connection after the handshake.
func (h *home) start() {
	h.t.Helper()
	files, err := servertls.Open(h.options())
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(h.t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	h.address = l.Addr().String()
	config := files.Config()
	var wg sync.WaitGroup
	wg.Go(func() { files.Run(ctx) })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if secure := tls.Server(conn, config); secure.Handshake() == nil {
					_, _ = secure.Write([]byte{1})
				}
			})
		}
	})
	h.t.Cleanup(func() {
		cancel()
		l.Close()
		wg.Wait()
	})
}

// connect returns the connection state, once the server has accepted the client.
func (h *home) connect(edit ...func(*tls.Config)) (tls.ConnectionState, error) {
	h.t.Helper()
	config := &tls.Config{RootCAs: h.ca.Pool()}
	for _, e := range edit {
		e(config)
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(h.t.Context(), "tcp", h.address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = io.ReadFull(conn, make([]byte, 1)) // in 1.3 a refusal comes after the client's handshake
	return conn.(*tls.Conn).ConnectionState(), err
}

func (h *home) served() string {
	h.t.Helper()
	state, err := h.connect()
	if err != nil {
		h.t.Fatal(err)
	}
	return state.PeerCertificates[0].Subject.CommonName
}

func (h *home) eventually(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.After(2 * time.Minute)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-deadline:
			h.t.Fatalf("timed out waiting for: %s", what)
		case <-ticker.C:
		}
	}
}

func presenting(t *testing.T, pair devca.Pair) func(*tls.Config) {
	t.Helper()
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return func(c *tls.Config) { // also to a server that would not ask for this one
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
}

func TestProtocols(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.start()
	state, err := h.connect(func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} })
	if err != nil || state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "h2" {
		t.Errorf("%x %s, %v", state.Version, state.NegotiatedProtocol, err)
	}
	state, err = h.connect(func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
	if err != nil || state.Version != tls.VersionTLS12 {
		t.Errorf("TLS 1.2: %v", err)
	}
	if _, err := h.connect(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS11, tls.VersionTLS11 }); err == nil {
		t.Error("TLS 1.1 is spoken")
	}
	for _, suite := range []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_128_GCM_SHA256,
	} {
		if _, err := h.connect(func(c *tls.Config) { c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{suite} }); err == nil {
			t.Errorf("%s is spoken", tls.CipherSuiteName(suite))
		}
	}
}

func TestClientCertificates(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.start()
	if _, err := h.connect(); err != nil {
		t.Errorf("without one: %v", err)
	}
	const client, server = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	if _, err := h.connect(presenting(t, h.issue("client", client))); err != nil {
		t.Errorf("with a good one: %v", err)
	}
	for name, pair := range map[string]devca.Pair{
		"of another authority": issueBy(t, authority(t), "client", client),
		"of a server":          h.issue("server", server),
		"expired":              h.issue("client", client, func(l *devca.Leaf) { l.NotAfter = time.Now().Add(-time.Minute) }),
		"not yet valid":        h.issue("client", client, func(l *devca.Leaf) { l.NotBefore = time.Now().Add(time.Minute) }),
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			if _, err := h.connect(presenting(t, pair), func(c *tls.Config) { c.MaxVersion = version }); err == nil {
				t.Errorf("with one %s, in %s: accepted", name, tls.VersionName(version))
			}
		}
	}
}

// A client of a removed authority must not reconnect with a resumed session.
func TestRemovedAuthority(t *testing.T) {
	t.Parallel()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		h := newHome(t)
		h.start()
		remembers := func(c *tls.Config) { c.MaxVersion = version }
		cache := tls.NewLRUClientSessionCache(4)
		with := presenting(t, h.issue("client", x509.ExtKeyUsageClientAuth))
		connect := func() error {
			state, err := h.connect(with, remembers, func(c *tls.Config) { c.ClientSessionCache = cache })
			if state.DidResume {
				t.Errorf("%s: a session was resumed", tls.VersionName(version))
			}
			return err
		}
		for range 2 {
			if err := connect(); err != nil {
				t.Fatal(err)
			}
		}
		h.write("ca.pem", authority(t).PEM())
		h.eventually("the client is refused", func() bool { return connect() != nil })
		h.write("ca.pem", append(authority(t).PEM(), h.ca.PEM()...))
		h.eventually("the client is accepted again", func() bool { return connect() == nil })
	}
}

func TestNewCertificateIsServed(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.start()
	if got := h.served(); got != "one" {
		t.Fatalf("serves %s", got)
	}
	h.install(h.issue("two", x509.ExtKeyUsageServerAuth))
	h.eventually("the new one is served", func() bool { return h.served() == "two" })
	h.eventually("it is logged", func() bool { return h.log.count("new TLS files are in use") == 1 })
	if n := value(h, "spendhook_tls_certificate_expiry_timestamp_seconds", ""); n < float64(time.Now().Unix()) {
		t.Errorf("expiry %v", n)
	}
}

func value(h *home, name, files string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && (files == "" || m.GetLabel()[0].GetValue() == files) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	h.t.Fatalf("no %s", name)
	return 0
}

// A mounted Kubernetes secret: the files are links into ..data, itself a link
// that is moved to a new directory.
func TestCertificateBehindAMovedLinkIsServed(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	version := func(n string, pair devca.Pair) {
		dir := filepath.Join(h.dir, "..v"+n)
		if err := errors.Join(
			os.Mkdir(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "cert.pem"), pair.Cert, 0o600),
			os.WriteFile(filepath.Join(dir, "key.pem"), pair.Key, 0o600),
			os.Symlink("..v"+n, filepath.Join(h.dir, "..data_tmp")),
			os.Rename(filepath.Join(h.dir, "..data_tmp"), filepath.Join(h.dir, "..data")),
		); err != nil {
			t.Fatal(err)
		}
	}
	version("1", h.issue("v1", x509.ExtKeyUsageServerAuth))
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := errors.Join(os.Remove(filepath.Join(h.dir, name)), os.Symlink("..data/"+name, filepath.Join(h.dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	h.start()
	if got := h.served(); got != "v1" {
		t.Fatalf("serves %s", got)
	}
	version("2", h.issue("v2", x509.ExtKeyUsageServerAuth))
	h.eventually("the new version is served", func() bool { return h.served() == "v2" })
	if h.log.count("level=ERROR") > 0 {
		t.Errorf("a whole swap was taken for a broken one:\n%s", h.log.text.String())
	}
}

func TestBrokenFilesKeepTheOldOnes(t *testing.T) {
	t.Parallel()
	other := newHome(t).issue("other", x509.ExtKeyUsageServerAuth)
	for name, breaks := range map[string]func(cert []byte) []byte{
		"empty":           func([]byte) []byte { return []byte{} },
		"not PEM":         func([]byte) []byte { return []byte("hunter2") },
		"half":            func(cert []byte) []byte { return cert[:200] },
		"a chain cut off": func(cert []byte) []byte { return append(cert, other.Cert[:200]...) },
		"a chain damaged": func(cert []byte) []byte { return append(append(cert, other.Cert[:200]...), other.Cert...) },
		"with a key":      func(cert []byte) []byte { return append(cert, other.Key...) },
		"another's":       func([]byte) []byte { return other.Cert },
		"missing":         func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			h.start()
			cert, err := os.ReadFile(filepath.Join(h.dir, "cert.pem"))
			if err != nil {
				t.Fatal(err)
			}
			broken := breaks(cert)
			if h.write("cert.pem", broken); broken == nil {
				if err := os.Remove(filepath.Join(h.dir, "cert.pem")); err != nil {
					t.Fatal(err)
				}
			}
			h.eventually("it is counted", func() bool { return value(h, "spendhook_tls_reload_failures_total", "certificate") > 0 })
			if got := h.served(); got != "one" {
				t.Errorf("serves %s", got)
			}
			o := h.options()
			o.Registerer = nil
			if _, err := servertls.Open(o); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("at the start: %v", err)
			}
			h.install(h.issue("two", x509.ExtKeyUsageServerAuth))
			h.eventually("a good one is served", func() bool { return h.served() == "two" })
			if n := value(h, "spendhook_tls_reload_failures_total", "client_ca"); n != 0 {
				t.Errorf("the bundle failed %v times", n)
			}
		})
	}
}

// Invalid files are reported once, and again after they were valid meanwhile.
func TestInvalidFilesAreReportedOnce(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.start()
	good := h.ca.PEM()
	for reports := 1; reports <= 2; reports++ {
		h.write("ca.pem", good[:100])
		h.eventually("the error is logged", func() bool { return h.log.count("level=ERROR") == reports })
		good = append(authority(t).PEM(), good...)
		h.write("ca.pem", good)
		h.eventually("the new bundle is in use", func() bool { return h.log.count("new TLS files are in use") == reports })
	}
	if n := h.log.count("level=ERROR"); n != 2 {
		t.Errorf("%d errors in the log, want 2", n)
	}
}

// The bundle and the certificate are reloaded each on its own.
func TestBrokenBundleDoesNotHoldUpTheCertificate(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.start()
	h.write("ca.pem", h.ca.PEM()[:100])
	h.eventually("the error is logged", func() bool { return h.log.count("level=ERROR") == 1 })
	with := presenting(t, h.issue("client", x509.ExtKeyUsageClientAuth))
	if _, err := h.connect(with); err != nil {
		t.Errorf("the old bundle is gone: %v", err)
	}
	h.install(h.issue("two", x509.ExtKeyUsageServerAuth))
	h.eventually("the new certificate is served", func() bool { return h.served() == "two" })
}

// A listener behind a proxy may have no certificate. Then only the bundle is reloaded.
func TestABundleWithoutACertificate(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	o := h.options()
	o.CertFile, o.KeyFile = "", ""
	files, err := servertls.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	before := files.ClientCAs()
	if before == nil || files.ClientCAs() != before {
		t.Error("the pool is not the same each time")
	}
	o.ClientCAFile, o.Registerer = "", nil
	if files, err = servertls.Open(o); err != nil || files.ClientCAs() != nil {
		t.Errorf("nothing to watch: %v", err)
	}
}
