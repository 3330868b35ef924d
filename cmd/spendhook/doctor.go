package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"spendhook/config"
	"spendhook/internal/datadir"
	"spendhook/internal/egress"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/servertls"
)

type doctorCmd struct {
	configFlags

	JSON    bool          `name:"json" help:"Print the findings as JSON."`
	Timeout time.Duration `default:"10s" help:"Time limit of each check."`
}

// slowDatabase is the longest normal time to connect and to read the schema version.
const slowDatabase = time.Second

// The results of a check.
const (
	findingOK      = "ok"
	findingWarning = "warning" // it works now, but may stop working
	findingProblem = "problem" // it does not work, or loses data
)

// finding is one result of a check.
type finding struct {
	Check   string `json:"check"`
	Result  string `json:"result"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"` // empty if the result is ok
}

// errDoctor means that there are problems. They have been printed.
var errDoctor = errors.New("there are problems")

// Run makes all checks, changes nothing, and fails when there is a problem; warnings
// alone are no failure.
func (c *doctorCmd) Run(ctx context.Context, term *stdio) error {
	d := doctor{timeout: c.Timeout}
	d.check(ctx, "configuration", "the settings are good", func(_ context.Context, r *findings) {
		if _, err := config.LoadDaemon(c.Config, os.Environ(), c.overrides()); err != nil {
			r.problem("correct the settings in the configuration file, the SPENDHOOK_* variables or the flags; 'spendhook config check' checks them again", "%v", err)
		}
		if cfg, err := c.load(); err == nil { // without the rules for serve
			d.cfg = cfg
		}
	})
	if d.cfg != nil {
		d.examine(ctx)
	}
	if err := d.print(term, c.JSON); err != nil {
		return err
	}
	if slices.ContainsFunc(d.findings, func(f finding) bool { return f.Result == findingProblem }) {
		return errDoctor
	}
	return nil
}

// doctor makes the checks and gathers their findings.
type doctor struct {
	cfg      *config.Config
	timeout  time.Duration
	findings []finding
}

// findings are the results of one check.
type findings struct {
	check string
	list  []finding
}

func (r *findings) problem(remedy, format string, args ...any) {
	r.list = append(r.list, finding{r.check, findingProblem, fmt.Sprintf(format, args...), remedy})
}

func (r *findings) warn(remedy, format string, args ...any) {
	r.list = append(r.list, finding{r.check, findingWarning, fmt.Sprintf(format, args...), remedy})
}

// check makes a check within the timeout. Without a finding, it adds the message fine.
func (d *doctor) check(ctx context.Context, name, fine string, run func(context.Context, *findings)) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	r := &findings{check: name}
	if run(ctx, r); len(r.list) == 0 {
		r.list = []finding{{Check: name, Result: findingOK, Message: fine}}
	}
	d.findings = append(d.findings, r.list...)
}

func (d *doctor) examine(ctx context.Context) {
	d.check(ctx, "data directory", "it exists, and only its owner can read it", func(_ context.Context, r *findings) {
		if err := datadir.Check(d.cfg.DataDir); err != nil {
			r.problem("name the daemon's directory with --data-dir, or run 'spendhook serve' once, which creates it", "%v", err)
		}
	})
	ring, err := openKeyring(d.cfg, seal.ReadFile)
	d.check(ctx, "encryption key files", "they can be read", func(_ context.Context, r *findings) {
		if err != nil {
			r.problem("set encryption.key or encryption.key_file to the key that the daemon used until now (docs/secrets.md)", "%v", err)
		}
	})
	d.check(ctx, "certificates", "none expires within 30 days", d.certificates)
	d.check(ctx, "spend database", "it answers, and its schema is current", d.database)
	d.check(ctx, "egress", "public names resolve, or the proxy accepts connections", d.egress)
	var redis *redisx.Redis
	d.check(ctx, "Redis", "it persists all writes, and evicts nothing", func(ctx context.Context, r *findings) { redis = d.connect(ctx, r) })
	if redis != nil {
		d.examineRedis(ctx, redis, ring)
		_ = redis.Close() // nothing was written
	}
}

// certificates checks when the certificates that the settings name expire.
func (d *doctor) certificates(_ context.Context, r *findings) {
	for _, f := range []struct{ setting, path string }{
		{"tls.cert_file", d.cfg.TLS.CertFile},
		{"tls.client_ca_file", d.cfg.TLS.ClientCAFile},
		{"redis.ca_file", d.cfg.Redis.CAFile},
		{"redis.cert_file", d.cfg.Redis.CertFile},
		{"storage.ca_file", d.cfg.Storage.CAFile},
		{"storage.cert_file", d.cfg.Storage.CertFile},
		{"egress.proxy_ca_file", d.cfg.Egress.ProxyCAFile},
	} {
		if f.path == "" {
			continue
		}
		const renew = "renew it; the daemon reads it again by itself"
		ends, err := earliestEnd(f.path)
		switch left := time.Until(ends); {
		case err != nil:
			r.problem("name a PEM file with certificates that the daemon may read", "%s: %v", f.setting, err)
		case left <= 0:
			r.problem(renew, "%s expired at %s", f.setting, ends.Format(time.RFC3339))
		case left < certificateNotice:
			r.warn(renew, "%s expires at %s", f.setting, ends.Format(time.RFC3339))
		}
	}
}

// earliestEnd returns the time at which the first of the certificates in a PEM file expires.
func earliestEnd(path string) (ends time.Time, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return ends, err
	}
	certificates, err := servertls.ParseCertificates(text)
	if err != nil {
		return ends, fmt.Errorf("%s: %w", path, err)
	}
	first := slices.MinFunc(certificates, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return first.NotAfter, nil
}

func (d *doctor) database(ctx context.Context, r *findings) {
	db, err := openStorage(d.cfg)
	if err != nil {
		r.problem("check storage.url; for SQLite run 'spendhook serve' or 'spendhook migrate' once", "%v", err)
		return
	}
	defer func() { _ = db.Close() }() // nothing was written
	began := time.Now()
	outdated, err := db.Outdated(ctx)
	switch took := time.Since(began); {
	case err != nil:
		r.problem("start the database, or correct storage.url and its certificates; deliveries go on meanwhile", "%v", err)
	case outdated:
		r.warn("start the daemon, or run 'spendhook migrate'", "its schema is that of an older release")
	case took > slowDatabase:
		r.warn("look for slow queries in the database; every request for spend data waits for it", "it answers within %v", took.Round(time.Millisecond))
	}
}

// egress checks that public names resolve, or that the egress proxy is reachable.
func (d *doctor) egress(ctx context.Context, r *findings) {
	if d.cfg.Egress.ProxyURL == "" {
		if _, err := net.DefaultResolver.LookupNetIP(ctx, "ip", "a.root-servers.net."); err != nil { // a name that always exists
			r.warn("configure a resolver for public names, or egress.proxy_url; without either, no public receiver can be reached", "public names do not resolve: %v", err)
		}
		return
	}
	proxy, err := egress.NewProxy(d.cfg.Egress.ProxyURL.Reveal(), nil)
	if err == nil {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", proxy.Address()); err == nil {
			_ = conn.Close()
			return
		}
	}
	r.problem("start the proxy, or correct egress.proxy_url; until then no delivery is sent", "the proxy cannot be reached: %v", err)
}

func (d *doctor) print(term *stdio, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(map[string]any{"findings": d.findings}, jsontext.WithIndent("  "))
		if err == nil {
			_, err = fmt.Fprintf(term.Out, "%s\n", text)
		}
		return err
	}
	marks := map[string]string{findingOK: "ok  ", findingWarning: "WARN", findingProblem: "FAIL"}
	for _, f := range d.findings {
		fmt.Fprintf(term.Out, "%s  %s: %s\n", marks[f.Result], f.Check, f.Message)
		if f.Remedy != "" {
			fmt.Fprintf(term.Out, "      do: %s\n", f.Remedy)
		}
	}
	return nil
}
