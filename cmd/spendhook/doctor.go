package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/go-redis/v9"

	"spendhook/config"
	"spendhook/internal/datadir"
	"spendhook/internal/egress"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
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
	findingSkipped = "skipped" // another problem prevents the check
)

// finding is what one check found.
type finding struct {
	Check   string `json:"check"`
	Result  string `json:"result"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"` // empty if the result is ok or skipped
}

// errDoctor means that there are problems. They have been printed.
var errDoctor = errors.New("there are problems")

// Run makes all checks, changes nothing, and fails when there is a problem; warnings
// alone are no failure.
func (c *doctorCmd) Run(ctx context.Context, term *stdio) error {
	d := doctor{timeout: c.Timeout}
	cfg, err := c.loadDaemon(nil)
	if err != nil {
		d.problem("configuration", err.Error(), "correct the settings in the configuration file, the SPENDHOOK_* variables or the flags; 'spendhook config check' checks them again")
		if cfg, err = c.load(); err != nil {
			return errors.Join(d.print(term, c.JSON), errDoctor)
		}
	} else {
		d.ok("configuration", "the settings are good")
	}
	d.examine(ctx, cfg)
	if err := d.print(term, c.JSON); err != nil {
		return err
	}
	for _, f := range d.findings {
		if f.Result == findingProblem {
			return errDoctor
		}
	}
	return nil
}

// doctor makes the checks and gathers their findings.
type doctor struct {
	timeout  time.Duration
	findings []finding
	away     []string // addresses of the shards of a Cluster that do not answer, while others do
}

func (d *doctor) add(check, result, message, remedy string) {
	d.findings = append(d.findings, finding{check, result, message, remedy})
}

func (d *doctor) ok(check, message string)           { d.add(check, findingOK, message, "") }
func (d *doctor) warn(check, message, remedy string) { d.add(check, findingWarning, message, remedy) }

func (d *doctor) problem(check, message, remedy string) {
	d.add(check, findingProblem, message, remedy)
}

func (d *doctor) examine(ctx context.Context, cfg *config.Config) {
	if err := datadir.Check(cfg.DataDir); err != nil {
		d.problem("data directory", err.Error(), "name the daemon's directory with --data-dir, or run 'spendhook serve' once, which creates it")
	} else {
		d.ok("data directory", cfg.DataDir+" exists, and only its owner can read it")
	}
	if _, err := openKeyring(cfg, seal.ReadFile); err != nil {
		d.problem("encryption keys", err.Error(), "set encryption.key or encryption.key_file to the key that the daemon used until now (docs/secrets.md)")
	} else {
		d.ok("encryption keys", "they can be read")
	}
	d.certificates(cfg)
	d.database(ctx, cfg)
	d.egress(ctx, cfg)
	d.redis(ctx, cfg)
}

// within runs a check for no longer than the timeout.
func (d *doctor) within(ctx context.Context, check func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	check(ctx)
}

// certificates checks when the certificates that the settings name expire.
func (d *doctor) certificates(cfg *config.Config) {
	for _, f := range []struct{ setting, path string }{
		{"tls.cert_file", cfg.TLS.CertFile},
		{"tls.client_ca_file", cfg.TLS.ClientCAFile},
		{"redis.ca_file", cfg.Redis.CAFile},
		{"redis.cert_file", cfg.Redis.CertFile},
		{"storage.ca_file", cfg.Storage.CAFile},
		{"storage.cert_file", cfg.Storage.CertFile},
		{"egress.proxy_ca_file", cfg.Egress.ProxyCAFile},
	} {
		if f.path == "" {
			continue
		}
		check := "certificate " + f.setting
		ends, err := earliestEnd(f.path)
		at := ends.Format(time.RFC3339)
		switch left := time.Until(ends); {
		case err != nil:
			d.problem(check, err.Error(), "name a PEM file with certificates that the daemon may read")
		case left <= 0:
			d.problem(check, "it expired at "+at, "renew it; the daemon reads it again by itself")
		case left < certificateNotice:
			d.warn(check, "it expires at "+at, "renew it; the daemon reads it again by itself")
		default:
			d.ok(check, "it is valid until "+at)
		}
	}
}

// earliestEnd returns the time at which the first of the certificates in a PEM file expires.
func earliestEnd(path string) (ends time.Time, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return ends, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return ends, fmt.Errorf("%s: %w", path, err)
		}
		if ends.IsZero() || c.NotAfter.Before(ends) {
			ends = c.NotAfter
		}
	}
	if ends.IsZero() {
		return ends, fmt.Errorf("%s holds no certificate", path)
	}
	return ends, nil
}

func (d *doctor) database(ctx context.Context, cfg *config.Config) {
	const check = "spend database"
	db, err := openStorage(cfg)
	if err != nil {
		d.problem(check, err.Error(), "check storage.url; for SQLite run 'spendhook serve' or 'spendhook migrate' once")
		return
	}
	d.within(ctx, func(ctx context.Context) {
		began := time.Now()
		outdated, err := db.Outdated(ctx)
		switch took := time.Since(began); {
		case err != nil:
			d.problem(check, err.Error(), "start the database, or correct storage.url and its certificates; deliveries go on meanwhile")
		case outdated:
			d.warn(check, "its schema is that of an older release", "start the daemon, or run 'spendhook migrate'")
		default:
			d.latency(check, took, slowDatabase, "it answers", "look for slow queries in the database; every request for spend data waits for it")
		}
	})
	_ = db.Close() // nothing was written
}

// latency adds a warning if an answer took longer than limit.
func (d *doctor) latency(check string, took, limit time.Duration, what, remedy string) {
	message := fmt.Sprintf("%s within %v", what, took.Round(10*time.Microsecond))
	if took > limit {
		d.warn(check, message, remedy)
		return
	}
	d.ok(check, message)
}

// egress checks that public names resolve, or that the egress proxy is reachable.
func (d *doctor) egress(ctx context.Context, cfg *config.Config) {
	d.within(ctx, func(ctx context.Context) {
		if cfg.Egress.ProxyURL != "" {
			d.proxy(ctx, cfg)
			return
		}
		_, err := net.DefaultResolver.LookupNetIP(ctx, "ip", "a.root-servers.net.") // a name that always exists
		if err != nil {
			d.warn("egress", "public names do not resolve: "+err.Error(), "configure a resolver for public names, or egress.proxy_url; without either, no public receiver can be reached")
			return
		}
		d.ok("egress", "public names resolve")
	})
}

func (d *doctor) proxy(ctx context.Context, cfg *config.Config) {
	proxy, err := egress.NewProxy(cfg.Egress.ProxyURL.Reveal(), nil)
	if err == nil {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", proxy.Address()); err == nil {
			_ = conn.Close()
			d.ok("egress", "the proxy at "+proxy.Address()+" accepts connections")
			return
		}
	}
	d.problem("egress", "the proxy cannot be reached: "+err.Error(), "start the proxy, or correct egress.proxy_url; until then no delivery is sent")
}

func (d *doctor) redis(ctx context.Context, cfg *config.Config) {
	const check = "Redis"
	var r *redisx.Redis
	var err error
	d.within(ctx, func(ctx context.Context) { r, err = redisx.Open(ctx, attachOptions(cfg)) })
	if err != nil {
		d.problem(check, err.Error(), "start Redis, or correct redis.url and its certificates")
		d.add("work", findingSkipped, "Redis does not answer", "")
		return
	}
	defer func() { _ = r.Close() }() // nothing was written
	status := redisx.Status{}
	d.within(ctx, func(ctx context.Context) {
		// The client of a Cluster first asks any server for its commands and the slot map. If that
		// server hangs, the first call times out, although the other servers answer.
		_ = r.Client().Ping(ctx).Err()
		_ = redisx.EachMaster(ctx, r.Client(), func(context.Context, string, redis.UniversalClient) error { return nil })
		status = r.Check(ctx)
	})
	for _, p := range status.Problems {
		d.problem(check, p, "see docs/redis.md for the settings that Redis needs; the daemon is not ready until then")
	}
	for _, p := range status.Away {
		d.problem(check, p, "start this server, or free its disk; until then only the companies of other shards are served")
		d.away = append(d.away, awayServer(p))
	}
	for _, w := range status.Warnings {
		d.warn(check, w, "see docs/redis.md for the settings that Redis needs")
	}
	if !status.Answers() {
		d.add("work", findingSkipped, "Redis does not answer", "")
		return
	}
	if len(status.Problems)+len(status.Away)+len(status.Warnings) == 0 {
		d.ok(check, "it persists all writes, and evicts nothing")
	}
	checks := []func(context.Context, *config.Config, *redisx.Redis){d.server, d.memory, d.work, d.keys}
	if len(d.away) == 0 {
		checks = append(checks, d.formats, d.egressCertificates)
	} else {
		d.add("versions", findingSkipped, "this check reads all shards, and a shard does not answer", "")
		d.add("egress certificates", findingSkipped, "this check reads all shards, and a shard does not answer", "")
	}
	for _, more := range checks {
		d.within(ctx, func(ctx context.Context) { more(ctx, cfg, r) })
	}
}

var findingMarks = map[string]string{findingOK: "ok  ", findingWarning: "WARN", findingProblem: "FAIL", findingSkipped: "--  "}

func (d *doctor) print(term *stdio, asJSON bool) error {
	if asJSON {
		text, err := json.Marshal(map[string]any{"findings": d.findings}, jsontext.WithIndent("  "))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(term.Out, "%s\n", text)
		return err
	}
	for _, f := range d.findings {
		if _, err := fmt.Fprintf(term.Out, "%s  %s: %s\n", findingMarks[f.Result], f.Check, f.Message); err != nil {
			return err
		}
		if f.Remedy != "" {
			fmt.Fprintf(term.Out, "      do: %s\n", f.Remedy)
		}
	}
	return nil
}
