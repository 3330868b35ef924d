package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/egress"
	"spendhook/internal/invalid"
	"spendhook/internal/seal"
	"spendhook/internal/secret"
	"spendhook/internal/syntax"
)

const (
	day          = 24 * time.Hour
	maxSchedule  = 50
	maxCatalogue = 1000
	maxRate      = 1_000_000
	maxIssuers   = 20
)

var scope = regexp.MustCompile(`^([a-z]+:(read|write)|platform|operator)$`)

// validateDaemon is validate for the command serve: outside dev it also requires mutual
// TLS, or trusted proxies.
func (c *Config) validateDaemon(p *invalid.Error) {
	c.validate(p)
	checker{p}.posture(c)
}

// validate adds a problem for every setting that is invalid, contradicts another one, or
// exposes the daemon.
func (c *Config) validate(p *invalid.Error) {
	v := checker{p}
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "auto", "json", "text", "color")
	v.notEmpty("data_dir", c.DataDir)
	v.redis(c.Redis)
	v.auth(c)
	v.between("shutdown_grace", c.ShutdownGrace, time.Second, 10*time.Minute)
	v.publicURL(c.PublicURL)
	v.events(c.Events)
	v.operations(c.Operations)
	v.number("subscribers.max_per_company", c.Subscribers.MaxPerCompany, 1, 10_000)
	v.between("subscribers.secret_overlap", c.Subscribers.SecretOverlap, time.Second, 30*day)
	v.storage(c.Storage)
	v.number("cards.concurrency", c.Cards.Concurrency, 1, 100)
	v.delivery(c.Delivery)
	v.schedule(c.Delivery, c.Events.Retention)
	v.listeners(c)
	v.http(c.HTTP)
	v.tls(c)
	v.oneOf("console.client_certificates", c.Console.ClientCertificates, required, optional)
	v.egress(c)
	v.encryption(c.Encryption)
	v.between("audit.retention", c.Audit.Retention, day, 3660*day)
	v.number("audit.max_entries", c.Audit.MaxEntries, 1000, 100_000_000)
	v.number("metrics.top_companies", c.Metrics.TopCompanies, 0, 100)
	v.limit("limits.client", c.Limits.ClientRate, c.Limits.ClientBurst)
	v.limit("limits.company", c.Limits.CompanyRate, c.Limits.CompanyBurst)
	v.number("limits.company_backlog", c.Limits.CompanyBacklog, 1, 1_000_000_000)
}

// checker adds a problem for each rule that a setting breaks.
type checker struct{ *invalid.Error }

func (v checker) redis(r Redis) {
	v.notEmpty("redis", r.URL.Reveal())
	v.number("redis.memory", r.Memory, 0, 1<<50)
	secure := strings.HasPrefix(r.URL.Reveal(), "rediss")
	v.client("redis", clientTLS{r.CAFile, r.CertFile, r.KeyFile}, secure, "want a rediss:// address for it")
	if !(r.HighWater >= 0.1 && r.HighWater <= 0.95) { // NaN too
		v.Add("redis.high_water", "OUT_OF_RANGE", "want 0.1 to 0.95, the share of Redis's memory that new events may fill")
	}
}

// clientTLS are the files for connections to a server.
type clientTLS struct{ ca, cert, key string }

func (v checker) client(section string, f clientTLS, used bool, want string) {
	if (f.cert == "") != (f.key == "") {
		v.Add(section+".key_file", "INVALID", "%s.cert_file and %s.key_file go together: set both or neither", section, section)
	}
	for key, file := range map[string]string{".ca_file": f.ca, ".cert_file": f.cert} {
		if file != "" && !used {
			v.Add(section+key, "INVALID", "%s", want)
		}
	}
}

// storage never repeats the address, which may hold a password.
func (v checker) storage(s Storage) {
	v.number("storage.max_conns", s.MaxConns, 0, 1000)
	v.client("storage", clientTLS{s.CAFile, s.CertFile, s.KeyFile}, s.URL != "", "want the address of a PostgreSQL for it")
	if s.URL == "" {
		return
	}
	u, err := url.Parse(s.URL.Reveal())
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		v.Add("storage.url", "INVALID", "want postgres://user:password@host/database, or nothing for SQLite in data_dir")
	}
}

func (v checker) operations(o operations) {
	if id, err := uuid.Parse(o.Company); o.Company != "" && (err != nil || id == uuid.Nil) {
		v.Add("operations.company", "INVALID", "want the uuid of a company, or nothing")
	}
}

func (v checker) events(e events) {
	v.between("events.retention", e.Retention, time.Minute, 90*day)
	v.between("events.keep_delivered", e.KeepDelivered, time.Second, 90*day)
	v.number("events.catalogue", len(e.Catalogue), 0, maxCatalogue)
	seen := map[string]bool{}
	for i, t := range e.Catalogue {
		key := fmt.Sprintf("events.catalogue[%d].name", i)
		if !syntax.EventType(t.Name) {
			v.Add(key, "INVALID", "want a capital letter and up to 63 of A-Z, 0-9 and _")
		} else if seen[t.Name] {
			v.Add(key, "DUPLICATE", "%s is there twice", t.Name)
		}
		seen[t.Name] = true
	}
}

func (v checker) delivery(d delivery) {
	v.between("delivery.attempt_timeout", d.AttemptTimeout, 100*time.Millisecond, 5*time.Minute)
	v.between("delivery.connect_timeout", d.ConnectTimeout, 10*time.Millisecond, max(d.AttemptTimeout, 10*time.Millisecond))
	v.between("delivery.retry_after_max", d.RetryAfterMax, 0, 7*day)
	v.number("delivery.concurrency", d.Concurrency, 1, 100_000)
	v.number("delivery.endpoint_concurrency", d.EndpointConcurrency, 1, max(d.Concurrency, 1))
	v.number("delivery.host_concurrency", d.HostConcurrency, 1, 100_000)
	v.between("delivery.dead_retention", d.DeadRetention, time.Hour, 365*day)
	v.number("delivery.failing_after", d.FailingAfter, 1, 1000)
	v.between("delivery.disable_after", d.DisableAfter, time.Minute, 365*day)
	if !isJitter(d.Jitter) {
		v.Add("delivery.jitter", "OUT_OF_RANGE", "want 0 to 0.5, the share of a wait by which it varies")
	}
}

// isJitter is false for NaN too.
func isJitter(share float64) bool { return share >= 0 && share <= 0.5 }

// schedule requires that the retry schedule ends within the retention of events.
func (v checker) schedule(d delivery, retention time.Duration) {
	v.number("delivery.schedule", len(d.Schedule), 0, maxSchedule)
	var total time.Duration
	for i, wait := range d.Schedule {
		v.between(fmt.Sprintf("delivery.schedule[%d]", i), wait, 100*time.Millisecond, 30*day)
		total += min(max(wait, 0), 30*day) // no overflow: at most 50 matter
		if i == maxSchedule {
			break
		}
	}
	if isJitter(d.Jitter) {
		total += time.Duration(float64(total) * d.Jitter)
	}
	if total > retention {
		v.Add("delivery.schedule", "TOO_LONG", "takes up to %v with its jitter, longer than events.retention (%v) keeps the event: shorten it or raise events.retention",
			total.Round(time.Second), retention)
	}
}

func (v checker) auth(c *Config) {
	a := c.Auth
	v.issuerName("auth.issuer", a.Issuer)
	v.between("auth.keep_keys", a.KeepKeys, time.Minute, 30*day)
	v.number("auth.issuers", len(a.Issuers), 0, maxIssuers)
	switch {
	case !a.Builtin && len(a.Issuers) == 0:
		v.Add("auth.builtin", "INVALID", "nobody could get a token: leave it on, or name the issuers to trust in auth.issuers")
	case !a.Builtin && c.Dev:
		v.Add("auth.builtin", "INVALID", "dev prints a token of the built-in issuer: leave it on")
	}
	seen := map[string]bool{a.Issuer: a.Builtin, DefaultIssuer: a.Builtin, c.PublicURL: a.Builtin && c.PublicURL != ""}
	for i, issuer := range a.Issuers {
		key := fmt.Sprintf("auth.issuers[%d]", i)
		v.trusted(key, issuer, c.Dev)
		if seen[issuer.Issuer] {
			v.Add(key+".issuer", "DUPLICATE", "is the name of another issuer too, or our own")
		}
		seen[issuer.Issuer] = true
	}
}

// trusted requires TLS: the server of jwks_url decides which tokens are valid.
func (v checker) trusted(key string, i trustedIssuer, dev bool) {
	v.issuerName(key+".issuer", i.Issuer)
	v.notEmpty(key+".audience", i.Audience)
	v.number(key+".scopes", len(i.Scopes), 1, 50)
	for n, name := range i.Scopes {
		if !scope.MatchString(name) {
			v.Add(fmt.Sprintf("%s.scopes[%d]", key, n), "INVALID", "want a scope such as events:write")
		}
	}
	u, err := url.Parse(i.JWKSURL)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil || (u.Scheme != "https" && u.Scheme != "http"):
		v.Add(key+".jwks_url", "INVALID", "want an address such as https://login.example.com/.well-known/jwks.json")
	case u.Scheme == "http" && !dev:
		v.unsafe(key+".jwks_url", "whoever is on the way could replace the keys: use https")
	}
}

// issuerName checks the name of an issuer. It must not contain "|", which separates issuer and
// subject in stored keys.
func (v checker) issuerName(key, name string) {
	v.notEmpty(key, name)
	if strings.Contains(name, "|") || len(name) > 500 {
		v.Add(key, "INVALID", "want at most 500 characters, without |")
	}
}

func (v checker) publicURL(raw string) {
	if raw == "" {
		return
	}
	u, err := url.Parse(raw)
	ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && u.Fragment == ""
	if !ok {
		v.Add("public_url", "INVALID", "want an address such as https://hooks.example.com, without user, query or fragment")
	}
}

// listeners refuses unprotected listeners on the network.
func (v checker) listeners(c *Config) {
	open, ok := v.address("listen", c.Listen)
	if ok && open && c.Dev {
		v.unsafe("listen", "dev has no protection and is for this machine only: use 127.0.0.1, or switch dev off")
	}
	open, ok = v.address("admin_listen", c.AdminListen)
	switch {
	case ok && open && c.Dev:
		v.unsafe("admin_listen", "dev has no protection and is for this machine only: use 127.0.0.1, or switch dev off")
	case ok && open && !c.AdminPublic:
		v.unsafe("admin_listen", "it shows metrics and profiles to anyone who reaches it: use 127.0.0.1, or set admin_public when the network around it is closed")
	}
	if c.Listen == c.AdminListen && !strings.HasSuffix(c.Listen, ":0") {
		v.Add("admin_listen", "INVALID", "is the same address as listen")
	}
}

func (v checker) http(h httpLimits) {
	v.number("http.max_connections", h.MaxConnections, 1, 1_000_000)
	v.number("http.max_connections_per_address", h.MaxConnectionsPerAddress, 1, max(h.MaxConnections, 1))
	v.between("http.header_timeout", h.HeaderTimeout, 100*time.Millisecond, time.Minute)
	v.between("http.request_timeout", h.RequestTimeout, max(h.HeaderTimeout, 100*time.Millisecond), 10*time.Minute)
	v.between("http.idle_timeout", h.IdleTimeout, time.Second, time.Hour)
}

func (v checker) tls(c *Config) {
	t := c.TLS
	if (t.CertFile == "") != (t.KeyFile == "") {
		v.Add("tls.key_file", "INVALID", "tls.cert_file and tls.key_file go together: set both or neither")
	}
	if t.ClientCAFile != "" && t.CertFile == "" && len(t.TrustedProxies) == 0 {
		v.Add("tls.client_ca_file", "INVALID", "nobody could present a certificate: set tls.cert_file and tls.key_file, or tls.trusted_proxies")
	}
	v.oneOf("tls.proxy_header", t.ProxyHeader, "client-cert", "xfcc")
	for i, prefix := range t.TrustedProxies {
		key := fmt.Sprintf("tls.trusted_proxies[%d]", i)
		switch {
		case !prefix.IsValid() || prefix.Addr().Is4In6():
			v.Add(key, "INVALID", "want a range such as 10.0.0.0/8 or fd00::/8")
		case prefix.Bits() == 0:
			v.unsafe(key, "%v lets anyone claim any address and certificate: name the proxies", prefix)
		}
	}
	groups := t.ClientCertificates.byGroup()
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		v.oneOf("tls.client_certificates."+group, groups[group], required, optional)
	}
	for _, group := range []string{"subscribers", "reimbursements"} {
		if groups[group] == optional && !c.Dev {
			v.unsafe("tls.client_certificates."+group, "mutual TLS is not optional there but in dev: set it to required")
		}
	}
}

// posture requires mutual TLS, or trusted proxies, outside dev.
func (v checker) posture(c *Config) {
	if c.Dev || len(c.TLS.TrustedProxies) > 0 {
		return
	}
	const instead = "or name the proxies that end TLS in tls.trusted_proxies"
	switch {
	case c.TLS.CertFile == "":
		v.unsafe("tls", "there is no TLS: set tls.cert_file, tls.key_file and tls.client_ca_file, %s; to try it, start with --quickstart, which makes certificates, or with --dev", instead)
	case c.TLS.ClientCAFile == "":
		v.unsafe("tls", "there is no mutual TLS: set tls.client_ca_file, %s", instead)
	}
}

// address checks a listen address and reports whether other machines can reach it.
func (v checker) address(key, address string) (open, ok bool) {
	host, port, err := net.SplitHostPort(address)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		v.Add(key, "INVALID", "want host:port, as in 127.0.0.1:8080")
		return false, false
	}
	if host == "localhost" {
		return false, true
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.IsLoopback(), true
}

func (v checker) egress(c *Config) {
	if c.Egress.AllowHTTP && !c.Dev {
		v.unsafe("egress.allow_http", "events would cross the network in clear: set it to false, or use dev on this machine")
	}
	v.proxy(c.Egress)
	for i, prefix := range c.Egress.AllowCIDRs {
		key := fmt.Sprintf("egress.allow_cidrs[%d]", i)
		switch {
		case !prefix.IsValid() || prefix.Addr().Is4In6():
			v.Add(key, "INVALID", "want a range such as 10.0.0.0/8 or fd00::/8")
		case prefix.Bits() == 0 && !c.Dev:
			v.unsafe(key, "%v lets whoever may register a subscriber call every internal address: name the ranges that are needed", prefix)
		}
	}
}

func (v checker) limit(key string, rate, burst int) {
	v.number(key+"_rate", rate, 0, maxRate)
	v.number(key+"_burst", burst, 1, maxRate)
}

// proxy never repeats the address, which may hold a password.
func (v checker) proxy(e egressRules) {
	if e.ProxyURL == "" {
		if e.ProxyCAFile != "" {
			v.Add("egress.proxy_ca_file", "INVALID", "is given without egress.proxy_url")
		}
		return
	}
	if _, err := egress.NewProxy(e.ProxyURL.Reveal(), nil); err != nil {
		v.Add("egress.proxy_url", "INVALID", "%v", err)
	}
}

// encryption never repeats a key. Files are read when they are used.
func (v checker) encryption(e Encryption) {
	if e.Key != "" && e.KeyFile != "" {
		v.Add("encryption.key_file", "INVALID", "is given beside encryption.key: leave one of them out")
	}
	v.encryptionKey("encryption.key", e.Key)
	for i, old := range e.OldKeys {
		v.encryptionKey(fmt.Sprintf("encryption.old_keys[%d]", i), old)
	}
}

func (v checker) encryptionKey(key string, text secret.Text) {
	if text == "" {
		return
	}
	if _, err := seal.ParseKey(text.Reveal()); err != nil {
		v.Add(key, "INVALID", "%v", err)
	}
}

func (v checker) unsafe(key, format string, args ...any) {
	v.Add(key, "UNSAFE", "refused: "+format, args...)
}

func (v checker) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.Add(key, "INVALID", "want one of %s", strings.Join(allowed, ", "))
	}
}

func (v checker) notEmpty(key, value string) {
	if strings.TrimSpace(value) == "" {
		v.Add(key, "REQUIRED", "is empty")
	}
}

func (v checker) number(key string, value, least, most int) {
	if value < least || value > most {
		v.Add(key, "OUT_OF_RANGE", "is %d, want %d to %d", value, least, most)
	}
}

func (v checker) between(key string, value, least, most time.Duration) {
	if value < least || value > most {
		v.Add(key, "OUT_OF_RANGE", "is %v, want %v to %v", value, least, most)
	}
}
