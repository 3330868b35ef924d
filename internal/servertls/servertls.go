// Package servertls is the server's side of TLS: the certificate of a listener, the CAs of
// client certificates, and the replacement of both while it runs.
package servertls

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/pause"
)

// Options name the files (PEM). CertFile has the server's certificate and its intermediates,
// KeyFile the key, ClientCAFile the CAs of client certificates.
type Options struct {
	CertFile, KeyFile string // "" for a listener in clear
	ClientCAFile      string // "" asks clients for no certificate

	Every      time.Duration         // interval at which the files are checked; 0 means 1 s
	Logger     *slog.Logger          // nil means slog.Default
	Registerer prometheus.Registerer // nil: not registered
}

// Files has the last valid certificate, key and bundle. It is safe for concurrent use.
type Files struct {
	every    time.Duration
	log      *slog.Logger
	sources  []*source
	failures *prometheus.CounterVec

	certificate atomic.Pointer[tls.Certificate]
	pool        atomic.Pointer[x509.CertPool]
}

// source is a group of files that must match. The certificate and the bundle are reloaded
// independently: an invalid bundle must not block the renewal of a certificate.
type source struct {
	name    string
	paths   []string
	use     func(contents [][]byte) error
	current [][]byte // the contents in use
	failed  int      // how many checks in a row found invalid files
}

// Open reads the files. The error names the invalid file.
func Open(o Options) (*Files, error) {
	auto := promauto.With(o.Registerer)
	f := &Files{every: cmp.Or(o.Every, time.Second), log: cmp.Or(o.Logger, slog.Default()), failures: auto.NewCounterVec(prometheus.CounterOpts{
		Name: "spendhook_tls_reload_failures_total",
		Help: "New TLS files that were invalid, so that the old ones stay in use, by kind.",
	}, []string{"files"})}
	expiry := auto.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_tls_certificate_expiry_timestamp_seconds",
		Help: "When the server's certificate expires, in Unix time; 0 without one.",
	})
	caExpiry := auto.NewGauge(prometheus.GaugeOpts{
		Name: "spendhook_tls_client_ca_expiry_timestamp_seconds",
		Help: "When the first CA of client certificates expires, in Unix time; 0 without one.",
	})
	for _, s := range []*source{
		{name: "certificate", paths: []string{o.CertFile, o.KeyFile}, use: func(contents [][]byte) error { return f.useCertificate(contents, expiry) }},
		{name: "client_ca", paths: []string{o.ClientCAFile}, use: func(contents [][]byte) error { return f.useBundle(contents[0], caExpiry) }},
	} {
		f.failures.WithLabelValues(s.name)
		if strings.Join(s.paths, "") == "" {
			continue
		}
		if _, err := s.load(); err != nil {
			return nil, err
		}
		f.sources = append(f.sources, s)
	}
	return f, nil
}

// Run checks the files periodically until ctx ends. It compares their content, not their times:
// a mounted secret is replaced by moving a link, and no file system notification covers that
// everywhere. It logs invalid files once, and only if they are still invalid at the next check:
// the two files of a certificate are replaced one after the other.
func (f *Files) Run(ctx context.Context) {
	for len(f.sources) > 0 && pause.For(ctx, f.every) {
		for _, s := range f.sources {
			changed, err := s.load()
			if changed {
				f.log.Info("new TLS files are in use", "files", s.name)
			}
			if err == nil {
				s.failed = 0
			} else if s.failed++; s.failed == 2 {
				f.failures.WithLabelValues(s.name).Inc()
				f.log.Error("the new TLS files are invalid; the previous ones stay in use", "files", s.name, "exception.message", err)
			}
		}
	}
}

// load reads the files and uses them when they have changed.
func (s *source) load() (changed bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", strings.Join(s.paths, ", "), err)
		}
	}()
	contents := make([][]byte, len(s.paths))
	for i, path := range s.paths {
		if contents[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	if slices.EqualFunc(contents, s.current, bytes.Equal) {
		return false, nil
	}
	if err := s.use(contents); err != nil {
		return false, err
	}
	s.current = contents
	return true, nil
}

// useCertificate refuses a key of another certificate. It also refuses a damaged chain: the standard
// library would skip the damaged certificates.
func (f *Files) useCertificate(contents [][]byte, expiry prometheus.Gauge) error {
	if _, err := parseCertificates(contents[0]); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return err // without the key's content
	}
	f.certificate.Store(&pair)
	expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	return nil
}

func (f *Files) useBundle(text []byte, expiry prometheus.Gauge) error {
	certs, err := parseCertificates(text)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	f.pool.Store(pool)
	expiry.Set(float64(FirstToExpire(certs).NotAfter.Unix()))
	return nil
}

// ClientCAs are the CAs of client certificates, nil when there is no bundle. The pointer is the
// same until the bundle changes.
func (f *Files) ClientCAs() *x509.CertPool { return f.pool.Load() }

// Config returns the settings of a listener with a certificate. Every handshake uses the last valid files.
func (f *Files) Config() *tls.Config {
	config := newConfig()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		config := newConfig()
		config.Certificates = []tls.Certificate{*f.certificate.Load()}
		if pool := f.pool.Load(); pool != nil {
			// Each route decides whether it needs a certificate. A presented certificate must be
			// valid and meant for clients (extended key usage).
			config.ClientCAs, config.ClientAuth = pool, tls.VerifyClientCertIfGiven
		}
		return config, nil
	}
	return config
}

// newConfig returns the settings of every handshake (RFC 9325): TLS 1.2 with forward secrecy and
// authenticated encryption, or TLS 1.3.
func newConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{ // of TLS 1.2; those of TLS 1.3 need no choice
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
		NextProtos: []string{"h2", "http/1.1"},
		// A resumed session would skip the verification of the client's certificate.
		SessionTicketsDisabled: true,
	}
}

// parseCertificates reads all certificates of a PEM bundle, or none of them.
func parseCertificates(text []byte) ([]*x509.Certificate, error) {
	begun := bytes.Count(text, []byte("-----BEGIN"))
	var certs []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a %s, want certificates only", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if begun == 0 {
		return nil, errors.New("holds no certificate (PEM)")
	}
	if len(certs) != begun { // the decoder skips damaged blocks
		return nil, errors.New("is cut off or damaged")
	}
	return certs, nil
}

// ReadCertificates reads all certificates of a PEM file, or none of them.
func ReadCertificates(path string) ([]*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return certs, nil
}

// FirstToExpire is the certificate of a list that expires first.
func FirstToExpire(certs []*x509.Certificate) *x509.Certificate {
	return slices.MinFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
}
