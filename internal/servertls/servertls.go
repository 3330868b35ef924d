// Package servertls is the server's side of TLS: the certificate of a listener, the CAs of
// client certificates, and the replacement of both while it runs.
package servertls

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/pause"
)

// Options name the files (PEM). CertFile holds the server's certificate and its
// intermediates, KeyFile the key, ClientCAFile the authorities that sign client
// certificates. Without CertFile and KeyFile only the bundle is watched.
type Options struct {
	CertFile, KeyFile string
	ClientCAFile      string // "" asks clients for no certificate

	Every      time.Duration         // interval at which the files are checked; 0 means 1 s
	Logger     *slog.Logger          // nil means slog.Default
	Registerer prometheus.Registerer // nil: not registered
}

// Files has the last valid certificate, key and bundle. It is safe for concurrent use.
type Files struct {
	every   time.Duration
	sources []*source
	metrics *metrics
	log     *slog.Logger

	certificate atomic.Pointer[tls.Certificate]
	pool        atomic.Pointer[x509.CertPool]
	config      atomic.Pointer[tls.Config] // of the two
}

// Open reads the files. The error names the invalid file.
func Open(o Options) (*Files, error) {
	o.Every = cmp.Or(o.Every, time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	f := &Files{every: o.Every, log: o.Logger, metrics: newMetrics(o.Registerer)}
	if o.CertFile != "" || o.KeyFile != "" {
		f.sources = append(f.sources, &source{what: certificateFiles, paths: []string{o.CertFile, o.KeyFile}, use: f.useCertificate})
	}
	if o.ClientCAFile != "" {
		f.sources = append(f.sources, &source{what: bundleFile, paths: []string{o.ClientCAFile}, use: f.useBundle})
	}
	for _, s := range f.sources {
		if _, err := s.look(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Run checks the files periodically until ctx ends. It compares their contents, because a mounted
// secret is replaced by moving a link, and no file system notification covers that everywhere.
func (f *Files) Run(ctx context.Context) {
	for len(f.sources) > 0 && pause.For(ctx, f.every) {
		f.look(ctx)
	}
}

// look loads changed files. It logs invalid files once, at the second check in a row that finds them: the
// two files of a certificate are replaced one after the other.
func (f *Files) look(ctx context.Context) {
	for _, s := range f.sources {
		changed, err := s.look()
		switch {
		case err != nil && s.failures == 2:
			f.metrics.failures.WithLabelValues(s.what).Inc()
			f.log.LogAttrs(ctx, slog.LevelError, "new TLS files are invalid; the old ones stay in use",
				slog.String("files", s.what), slog.String("exception.message", err.Error()))
		case err == nil && changed:
			f.metrics.reloads.WithLabelValues(s.what).Inc()
			f.log.LogAttrs(ctx, slog.LevelInfo, "new TLS files are in use", slog.String("files", s.what))
		}
	}
}

func (f *Files) useCertificate(contents [][]byte) error {
	cert, err := parsePair(contents[0], contents[1])
	if err != nil {
		return err
	}
	f.certificate.Store(cert)
	f.metrics.expiry.Set(float64(cert.Leaf.NotAfter.Unix()))
	f.rebuild()
	return nil
}

func (f *Files) useBundle(contents [][]byte) error {
	certs, err := ParseCertificates(contents[0])
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	first := slices.MinFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	f.pool.Store(pool)
	f.metrics.caExpiry.Set(float64(first.NotAfter.Unix()))
	f.rebuild()
	return nil
}

// ClientCAs are the authorities of client certificates, nil when there is no
// bundle. The pointer is the same until the bundle changes.
func (f *Files) ClientCAs() *x509.CertPool { return f.pool.Load() }

// Config is for a listener. Every handshake uses the present files.
func (f *Files) Config() *tls.Config {
	config := newConfig()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.config.Load(), nil }
	return config
}

func (f *Files) rebuild() {
	cert := f.certificate.Load()
	if cert == nil {
		return
	}
	config := newConfig()
	config.Certificates = []tls.Certificate{*cert}
	if pool := f.pool.Load(); pool != nil {
		// Each route decides whether it needs a certificate. A presented certificate must be
		// valid and meant for clients (extended key usage).
		config.ClientCAs, config.ClientAuth = pool, tls.VerifyClientCertIfGiven
	}
	f.config.Store(config)
}

// newConfig has what holds for every handshake (RFC 9325): TLS 1.2 with forward
// secrecy and authenticated encryption, or 1.3.
func newConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{ // of 1.2; those of 1.3 are all good
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

type metrics struct {
	reloads, failures *prometheus.CounterVec
	expiry, caExpiry  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	auto := promauto.With(reg)
	m := &metrics{
		reloads: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_tls_reloads_total",
			Help: "New TLS files that came into use, by kind.",
		}, []string{"files"}),
		failures: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_tls_reload_failures_total",
			Help: "New TLS files that were invalid, so that the old ones stay in use, by kind.",
		}, []string{"files"}),
		expiry: auto.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_tls_certificate_expiry_timestamp_seconds",
			Help: "When the server's certificate expires, in Unix time; 0 without one.",
		}),
		caExpiry: auto.NewGauge(prometheus.GaugeOpts{
			Name: "spendhook_tls_client_ca_expiry_timestamp_seconds",
			Help: "When the first CA of client certificates expires, in Unix time; 0 without one.",
		}),
	}
	for _, what := range []string{certificateFiles, bundleFile} {
		m.reloads.WithLabelValues(what)
		m.failures.WithLabelValues(what)
	}
	return m
}
