// Package callback has the rules for the callback URL of a subscriber and for the headers and access tokens
// that are sent with every delivery to it. It does not use Redis.
package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"spendhook/internal/invalid"
)

const maxURL = 2048 // bytes

// Policy says which callback URLs may be set.
type Policy struct {
	AllowHTTP bool // also plain http
	// Resolve checks the host of a URL, without port, when the URL is set. An error refuses the
	// URL (code CALLBACK_URL_REFUSED). nil accepts every host.
	Resolve func(ctx context.Context, host string) error
}

// Any allows http. It is for looking up stored URLs, which another policy may have allowed.
var Any = Policy{AllowHTTP: true}

// Normalize returns raw with its scheme and host in lower case, the host in its ASCII form
// (punycode), "/" for an empty path, and without default port, empty query and fragment. It
// adds a problem on callbackUrl unless raw is an absolute https URL (or http with AllowHTTP)
// of at most 2,048 bytes without user information, white space and control characters.
// Normalising twice changes nothing.
func (p Policy) Normalize(problems *invalid.Error, raw string) string {
	return p.normalize(problems, "callbackUrl", raw)
}

func (p Policy) normalize(problems *invalid.Error, field, raw string) string {
	if raw == "" {
		problems.Add(field, "REQUIRED", "is required")
		return ""
	}
	normal, err := p.parse(raw)
	switch {
	case len(raw) > maxURL || len(normal) > maxURL:
		problems.Add(field, "TOO_LONG", "must be at most %d bytes", maxURL)
		return ""
	case err != nil:
		problems.Add(field, "INVALID", "%v", err)
		return ""
	}
	return normal
}

// parse never repeats raw in its errors: raw may contain a password.
func (p Policy) parse(raw string) (string, error) {
	if len(raw) > maxURL || !utf8.ValidString(raw) || strings.ContainsFunc(raw, spaceOrControl) {
		return "", errors.New("must have no white space or control characters")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Hostname() == "":
		return "", errors.New("must be an absolute URL with a host")
	case u.Scheme != "https" && (u.Scheme != "http" || !p.AllowHTTP):
		return "", errors.New("must start with https://")
	case u.User != nil:
		return "", errors.New("must not carry a user name or password")
	}
	u.Fragment, u.RawFragment = "", ""
	u.RawQuery, u.ForceQuery = escapeQuery(u.RawQuery), false
	if u.Path == "" {
		u.Path = "/"
	}
	u.Host, err = normalizeHost(u)
	return u.String(), err
}

func spaceOrControl(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// escapeQuery percent-encodes the characters that a query cannot have (RFC 3986, 3.4), as net/url does
// for the path. Everything else stays byte for byte.
func escapeQuery(query string) string {
	var b strings.Builder
	for _, c := range []byte(query) {
		if c < utf8.RuneSelf && !strings.ContainsRune("\"<>\\^`{|}", rune(c)) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// normalizeHost returns the host, with the port unless it is the default of the scheme.
func normalizeHost(u *url.URL) (string, error) {
	host, err := normalizeName(u.Hostname())
	if err != nil {
		return "", err
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if u.Port() == "" {
		return host, nil
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	switch {
	case err != nil || port == 0:
		return "", errors.New("must have a port of 1 to 65535")
	case u.Scheme == "https" && port == 443, u.Scheme == "http" && port == 80:
		return host, nil
	}
	return host + ":" + strconv.FormatUint(port, 10), nil
}

var (
	errHost = errors.New("must have a valid host name or IP address")

	// Real host names have hyphens and underscores that IDNA's strict rules refuse. hostName
	// checks the result instead.
	toASCII = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.CheckHyphens(false), idna.StrictDomainName(false))

	hostName = regexp.MustCompile(`^([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}$`)

	// Many resolvers read a name that ends in a number as an IPv4 address, for example 0x7f.1
	// or 2130706433 (WHATWG URL, "ends in a number").
	numeric = regexp.MustCompile(`(^|\.)([0-9]+|0x[0-9a-f]*)$`)
)

func normalizeName(host string) (string, error) {
	if strings.Contains(host, ":") {
		return normalizeAddr(host)
	}
	host, err := toASCII.ToASCII(host)
	if err != nil {
		return "", errHost
	}
	if again, err := toASCII.ToASCII(host); err != nil || again != host { // punycode of characters that no name may have
		return "", errHost
	}
	host = strings.TrimSuffix(host, ".")
	switch {
	case len(host) > 253 || !hostName.MatchString(host):
		return "", errHost
	case numeric.MatchString(host):
		return normalizeAddr(host)
	}
	return host, nil
}

func normalizeAddr(host string) (string, error) {
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" {
		return "", errHost
	}
	return addr.String(), nil
}

// CheckHost checks the host of a normalised URL with Resolve. An *invalid.Error refuses the URL.
func (p Policy) CheckHost(ctx context.Context, normal string) error {
	var problems invalid.Error
	refused, err := p.refuses(ctx, normal)
	if refused {
		problems.Add("callbackUrl", "CALLBACK_URL_REFUSED", notPublic)
	}
	return cmp.Or(err, problems.OrNil())
}

const notPublic = "its host is not, or does not resolve to, a public address"

// refuses reports whether Resolve refuses the host of a normalised URL.
func (p Policy) refuses(ctx context.Context, normal string) (bool, error) {
	if p.Resolve == nil {
		return false, nil
	}
	u, err := url.Parse(normal)
	if err != nil {
		return false, err
	}
	if err = p.Resolve(ctx, u.Hostname()); err != nil && ctx.Err() != nil {
		return false, fmt.Errorf("resolve the host of a URL: %w", err)
	}
	return err != nil, nil
}
