package config

import (
	"fmt"
	"maps"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"spendhook/internal/egress"
	"spendhook/internal/invalid"
	"spendhook/internal/syntax"
)

// maxSchedule bounds the attempts of a delivery.
const maxSchedule = 50

var scope = regexp.MustCompile(`^([a-z]+:(read|write)|platform|operator)$`)

// validate adds a problem for every setting that is invalid, contradicts another one, or
// exposes the daemon. Validation reads no file that a setting names: the components that use the files
// read them.
func (c *Config) validate(p *invalid.Error) {
	v := checker{p}
	v.tags(settings(c))
	v.notEmpty("data_dir", c.DataDir)
	v.notEmpty("redis", c.Redis.URL.Reveal())
	v.auth(c)
	v.publicURL(c.PublicURL)
	v.catalogue(c.Events.Catalogue)
	v.storage(c.Storage)
	v.schedule(c.Delivery, c.Events.Retention)
	v.history(c.History, c.Events.Retention)
	v.listeners(c)
	v.tls(c)
	v.egress(c)
	v.smtp(c)
	v.login(c)
	if c.Subscribers.Challenge != "off" && c.PublicURL == "" && !c.Dev {
		v.Add("subscribers.challenge", "INVALID", "needs public_url, whose host name receivers are told")
	}
	if c.Canary.Company != uuid.Nil && !strings.HasPrefix(c.PublicURL, "https://") && !c.Dev {
		v.Add("canary.company", "INVALID", "needs a public_url that begins with https://, where its events arrive")
	}
	if c.Encryption.Key != "" && c.Encryption.KeyFile != "" {
		v.Add("encryption.key_file", "INVALID", "encryption.key is set too: set only one of them")
	}
}

// maxHistoryCompanies bounds history.companies.
const maxHistoryCompanies = 1000

func (v checker) history(h history, atLeast time.Duration) {
	if h.Retention < atLeast {
		v.Add("history.retention", "OUT_OF_RANGE", "is %v, shorter than events.retention (%v)", h.Retention, atLeast)
	}
	const key = "history.companies"
	if len(h.Companies) > maxHistoryCompanies {
		v.Add(key, "OUT_OF_RANGE", "has %d entries, want at most %d", len(h.Companies), maxHistoryCompanies)
		return
	}
	seen := map[uuid.UUID]bool{}
	for i, c := range h.Companies {
		key := fmt.Sprintf("%s[%d]", key, i)
		if c.Company == uuid.Nil || seen[c.Company] {
			v.Add(key+".company", "INVALID", "want a company, each once")
		}
		seen[c.Company] = true
		if c.Days > int(h.Retention/days(1)) || days(c.Days) < atLeast {
			v.Add(key+".days", "OUT_OF_RANGE", "is %d: want a time from events.retention (%v) to history.retention (%v)", c.Days, atLeast, h.Retention)
		}
	}
}

// checker adds a problem for each rule that a setting breaks.
type checker struct{ *invalid.Error }

// tags checks the settings against their tags range and enum.
func (v checker) tags(all map[string]setting) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		s := all[key]
		if allowed := s.tag.Get("enum"); allowed != "" && !slices.Contains(strings.Split(allowed, ","), s.String()) {
			v.Add(key, "INVALID", "want one of %s", strings.ReplaceAll(allowed, ",", ", "))
		}
		least, most, limited := strings.Cut(s.tag.Get("range"), "..")
		switch {
		case limited && s.Kind() == reflect.Slice:
			for i := range s.Len() {
				v.within(fmt.Sprintf("%s[%d]", key, i), s.Index(i), least, most)
			}
		case limited:
			v.within(key, s.Value, least, most)
		}
	}
}

// within requires that a number or a duration is between least and most, inclusive.
func (v checker) within(key string, n reflect.Value, least, most string) {
	from, wrong := parse(scalar(least), n.Type())
	to, alsoWrong := parse(scalar(most), n.Type())
	if inside := number(n) >= number(from) && number(n) <= number(to); !inside || wrong != nil || alsoWrong != nil { // NaN is not inside
		v.Add(key, "OUT_OF_RANGE", "is %v, want %s to %s", n, least, most)
	}
}

// number returns a setting as a float64, which is exact enough for every range.
func number(v reflect.Value) float64 {
	if v.CanFloat() {
		return v.Float()
	}
	return float64(v.Int())
}

// storage reports no part of the URL, because the URL may contain a password.
func (v checker) storage(s Storage) {
	if s.URL == "" {
		return
	}
	u, err := url.Parse(s.URL.Reveal())
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		v.Add("storage.url", "INVALID", "want postgres://user:password@host/database, or nothing for SQLite in data_dir")
	}
}

func (v checker) catalogue(types []string) {
	for i, name := range types {
		if !syntax.EventType(name) {
			v.Add(fmt.Sprintf("events.catalogue[%d]", i), "INVALID", "want a letter or digit and up to 127 of A-Z, a-z, 0-9, _, ., : and -")
		}
	}
}

// schedule requires that the retry schedule ends within the retention of events.
func (v checker) schedule(d delivery, retention time.Duration) {
	if len(d.Schedule) > maxSchedule {
		v.Add("delivery.schedule", "OUT_OF_RANGE", "has %d waits, want at most %d", len(d.Schedule), maxSchedule)
		return
	}
	total := 0.0 // a sum of durations may overflow
	for _, wait := range d.Schedule {
		total += float64(wait)
	}
	if d.Jitter >= 0 { // false for NaN
		total *= 1 + d.Jitter
	}
	if total > float64(retention) {
		v.Add("delivery.schedule", "TOO_LONG", "takes up to %v with its jitter, longer than events.retention (%v): shorten the schedule or raise events.retention",
			time.Duration(total).Round(time.Second), retention)
	}
}

func (v checker) auth(c *Config) {
	a := c.Auth
	switch {
	case !a.Builtin && len(a.Issuers) == 0:
		v.Add("auth.builtin", "INVALID", "no client could get a token: set it to true, or list trusted issuers in auth.issuers")
	case !a.Builtin && c.Dev:
		v.Add("auth.builtin", "INVALID", "dev prints a token of the built-in issuer: set it to true")
	}
	seen := map[string]bool{DefaultIssuer: a.Builtin, c.PublicURL: a.Builtin && c.PublicURL != ""}
	for i, issuer := range a.Issuers {
		key := fmt.Sprintf("auth.issuers[%d]", i)
		v.trusted(key, issuer, c.Dev)
		if seen[issuer.Issuer] {
			v.Add(key+".issuer", "DUPLICATE", "is also the name of another issuer, or of the built-in one")
		}
		seen[issuer.Issuer] = true
	}
}

// trusted checks an issuer. It requires TLS, because the server of jwks_url decides which tokens are
// valid.
func (v checker) trusted(key string, i trustedIssuer, dev bool) {
	v.notEmpty(key+".issuer", i.Issuer)
	if strings.Contains(i.Issuer, "|") || len(i.Issuer) > 500 { // stored keys have "|" between issuer and subject
		v.Add(key+".issuer", "INVALID", "want at most 500 characters, without |")
	}
	v.notEmpty(key+".audience", i.Audience)
	v.notEmpty(key+".scopes", strings.Join(i.Scopes, " "))
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
		v.unsafe(key+".jwks_url", "an attacker on the network could replace the keys: use https")
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
	open, adminOpen := v.address("listen", c.Listen), v.address("admin_listen", c.AdminListen)
	const dev = "dev has no protection and is for this machine only: use 127.0.0.1, or switch dev off"
	if open && c.Dev {
		v.unsafe("listen", dev)
	}
	switch {
	case adminOpen && c.Dev:
		v.unsafe("admin_listen", dev)
	case adminOpen && !c.AdminPublic:
		v.unsafe("admin_listen", "the listener shows metrics and profiles without authentication: use 127.0.0.1, or set admin_public if only trusted machines reach it")
	}
	if c.Listen == c.AdminListen && !strings.HasSuffix(c.Listen, ":0") {
		v.Add("admin_listen", "INVALID", "is the same address as listen")
	}
}

// address checks a listen address and reports whether other machines can reach it.
func (v checker) address(key, address string) (open bool) {
	host, port, err := net.SplitHostPort(address)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		v.Add(key, "INVALID", "want host:port, as in 127.0.0.1:8080")
		return false
	}
	return !loopback(host)
}

func (v checker) tls(c *Config) {
	t := c.TLS
	if (t.CertFile == "") != (t.KeyFile == "") {
		v.Add("tls.key_file", "INVALID", "tls.cert_file and tls.key_file go together: set both or neither")
	}
	if t.ClientCAFile != "" && t.CertFile == "" && len(t.TrustedProxies) == 0 {
		v.Add("tls.client_ca_file", "INVALID", "clients cannot present a certificate: set tls.cert_file and tls.key_file, or tls.trusted_proxies")
	}
	v.prefixes("tls.trusted_proxies", t.TrustedProxies, false, "lets every client forge its address and certificate: list the addresses of the proxies")
	for group, value := range map[string]string{"subscribers": t.ClientCertificates.Subscribers, "reimbursements": t.ClientCertificates.Reimbursements} {
		if value == "optional" && !c.Dev {
			v.unsafe("tls.client_certificates."+group, "mutual TLS may be optional for this group in dev only: set it to required")
		}
	}
}

// prefixes refuses address ranges that match nothing. Unless allowAll is set, it also refuses ranges
// that match every address.
func (v checker) prefixes(key string, list []netip.Prefix, allowAll bool, harm string) {
	for i, prefix := range list {
		key := fmt.Sprintf("%s[%d]", key, i)
		switch {
		case !prefix.IsValid() || prefix.Addr().Is4In6():
			v.Add(key, "INVALID", "want a range such as 10.0.0.0/8 or fd00::/8")
		case prefix.Bits() == 0 && !allowAll:
			v.unsafe(key, "%v %s", prefix, harm)
		}
	}
}

// mutualTLS requires mutual TLS, or trusted proxies, outside dev.
func (v checker) mutualTLS(c *Config) {
	if c.Dev || len(c.TLS.TrustedProxies) > 0 {
		return
	}
	const instead = "or list the proxies that end TLS in tls.trusted_proxies"
	switch {
	case c.TLS.CertFile == "":
		v.unsafe("tls", "there is no TLS: set tls.cert_file, tls.key_file and tls.client_ca_file, %s; to try it, start with --quickstart, which makes certificates, or with --dev", instead)
	case c.TLS.ClientCAFile == "":
		v.unsafe("tls", "there is no mutual TLS: set tls.client_ca_file, %s", instead)
	}
}

// egress reports no part of the URL of the proxy, because the URL may contain a password.
func (v checker) egress(c *Config) {
	v.prefixes("egress.allow_cidrs", c.Egress.AllowCIDRs, c.Dev,
		"lets every company call all internal addresses: list only the ranges that are needed")
	v.egressAddresses(c.Egress.Addresses)
	if c.Egress.ProxyURL == "" {
		return
	}
	if _, err := egress.NewProxy(c.Egress.ProxyURL.Reveal(), nil); err != nil {
		v.Add("egress.proxy_url", "INVALID", "%v", err)
	}
}

// smtp requires what mail needs: a sender, and an address for the links.
func (v checker) smtp(c *Config) {
	s := c.SMTP
	if s.Host == "" {
		if s.Username != "" || s.Password != "" || s.From != "" {
			v.Add("smtp.host", "REQUIRED", "is empty, so no mail is sent")
		}
		return
	}
	if s.TLS == "none" && !loopback(s.Host) && !c.Dev {
		v.unsafe("smtp.tls", "an attacker on the network could read the links in mails and confirm them: use starttls or tls; none is for a server on this machine")
	}
	if from, err := mail.ParseAddress(s.From); err != nil || !strings.Contains(from.Address, "@") {
		v.Add("smtp.from", "INVALID", "want a mail address such as hooks@example.com, or Hooks <hooks@example.com>")
	}
	if (s.Username == "") != (s.Password == "") && !v.has("smtp.password_file") {
		v.Add("smtp.password", "INVALID", "smtp.username and smtp.password go together: set both or neither")
	}
	if c.PublicURL == "" && !c.Dev {
		v.Add("smtp.host", "INVALID", "needs public_url, with which the links in mails begin")
	}
}

// companyRoles are the roles for one company; the others are for all.
var companyRoles = []string{"company-admin", "company-support", "company-reader"}

// login requires what a login needs: a provider that cannot be forged, a client there, roles, and an address to come back to.
func (v checker) login(c *Config) {
	const key = "console.login."
	l := c.Console.Login
	if l.Issuer == "" {
		if l.ClientID != "" || l.ClientSecret != "" || len(l.Roles) > 0 {
			v.Add(key+"issuer", "REQUIRED", "is empty, so nobody can sign in")
		}
		return
	}
	u, err := url.Parse(l.Issuer)
	switch {
	case err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" ||
		strings.Contains(l.Issuer, "|") || len(l.Issuer) > 500:
		v.Add(key+"issuer", "INVALID", "want the issuer of the provider, as in https://login.example.com, without user, query or fragment")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		v.unsafe(key+"issuer", "an attacker on the network could sign in as anybody: use https; http is for a provider on this machine")
	}
	v.notEmpty(key+"client_id", l.ClientID)
	if !v.has(key + "client_secret_file") {
		v.notEmpty(key+"client_secret", l.ClientSecret.Reveal())
	}
	v.notEmpty(key+"groups_claim", l.GroupsClaim)
	back, err := url.Parse(c.PublicURL)
	switch {
	case c.PublicURL == "" && !c.Dev:
		v.Add(key+"issuer", "INVALID", "needs public_url, to which the provider sends the browser back")
	case c.PublicURL != "" && err == nil && back.Scheme == "http" && !loopback(back.Hostname()):
		v.unsafe(key+"issuer", "an attacker on the network could read sessions: use a public_url that begins with https://")
	}
	if len(l.Roles) == 0 {
		v.Add(key+"roles", "REQUIRED", "is empty, so nobody has access")
	}
	for i, r := range l.Roles {
		v.role(fmt.Sprintf("%sroles[%d]", key, i), r, l.CompanyClaim)
	}
}

func (v checker) role(key string, r loginRole, companyClaim string) {
	v.notEmpty(key+".group", r.Group)
	switch ofCompany := slices.Contains(companyRoles, r.Role); {
	case !ofCompany && r.Role != "operator" && r.Role != "support":
		v.Add(key+".role", "INVALID", "want one of operator, support, %s", strings.Join(companyRoles, ", "))
	case !ofCompany && r.Company != uuid.Nil:
		v.Add(key+".company", "INVALID", "the role %s is for all companies: leave company out, or take a role whose name begins with company-", r.Role)
	case ofCompany && r.Company == uuid.Nil && companyClaim == "":
		v.Add(key+".company", "REQUIRED", "is empty: set it, or console.login.company_claim for the companies of a user")
	}
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

func (v checker) unsafe(key, format string, args ...any) {
	v.Add(key, "UNSAFE", "refused: "+format, args...)
}

func (v checker) notEmpty(key, value string) {
	if strings.TrimSpace(value) == "" && !v.has(key) {
		v.Add(key, "REQUIRED", "is empty")
	}
}

// has reports whether a setting has a problem already. It is empty then.
func (v checker) has(key string) bool {
	return slices.ContainsFunc(v.Fields, func(f invalid.Field) bool { return f.Field == key })
}
