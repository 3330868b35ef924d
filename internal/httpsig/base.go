package httpsig

import (
	"errors"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Components (RFC 9421 section 2). Of the derived ones, only these two can be covered.
const (
	componentMethod    = "@method"     // section 2.2.1
	componentTargetURI = "@target-uri" // section 2.2.2
	componentDigest    = "content-digest"
	componentType      = "content-type"
	componentID        = "webhook-id"
	componentTimestamp = "webhook-timestamp"
	componentSequence  = "webhook-sequence"
	componentPrevious  = "webhook-previous"
)

// required are the components that a signature must cover, in the order in which Sign covers them.
var required = [...]string{
	componentMethod, componentTargetURI, componentDigest, componentType, componentID, componentTimestamp,
}

// optional are the components that follow, if the message has them.
var optional = [...]string{componentSequence, componentPrevious}

// component is a covered component of a message.
type component struct{ name, value string }

// signatureBase is what is signed (RFC 9421 section 2.5). params is the serialised list of the components'
// names with the signature's parameters.
func signatureBase(covered []component, params string) []byte {
	base := make([]byte, 0, 1024)
	for _, c := range covered {
		base = append(base, '"')
		base = append(base, c.name...)
		base = append(base, `": `...)
		base = append(base, c.value...)
		base = append(base, '\n')
	}
	base = append(base, `"@signature-params": `...)
	return append(base, params...)
}

var (
	errValue = errors.New("a signed value must be ASCII without control characters")
	errURI   = errors.New("the target URI must be an absolute http or https URL of printable ASCII without spaces")
)

// fieldValue combines the lines of a field (RFC 9421 section 2.1). A line break in it could
// counterfeit the next component.
func fieldValue(lines ...string) (string, error) {
	trimmed := make([]string, len(lines))
	for i, line := range lines {
		trimmed[i] = strings.Trim(line, " \t")
	}
	value := strings.Join(trimmed, ", ")
	if strings.ContainsFunc(value, func(c rune) bool { return (c < ' ' && c != '\t') || c > '~' }) {
		return "", errValue
	}
	return value, nil
}

// sentURI is the target URI of a request that net/http sends to u.
func sentURI(u *url.URL) (string, error) {
	if u == nil {
		return "", errURI
	}
	return targetURI(u.Scheme, u.Host, u.RequestURI())
}

// receivedURI is a target URI as a receiver has put it together, in the form of sentURI. Path and query
// stay byte for byte: net/url would change their percent-encoding.
func receivedURI(uri string) (string, error) {
	scheme, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "#")
	end := strings.IndexAny(rest+"/", "/?")
	host, target := rest[:end], rest[end:]
	if !strings.HasPrefix(target, "/") {
		target = "/" + target
	}
	return targetURI(scheme, host, target)
}

// targetURI is the component @target-uri (RFC 9421 section 2.2.2): scheme and host in lower case, the host as net/http
// writes it into the request, no default port (section 2.2.3, RFC 9110 section 4.2.3), and then the
// request's target, which begins with a slash.
func targetURI(scheme, host, target string) (string, error) {
	scheme = strings.ToLower(scheme)
	host, err := httpguts.PunycodeHostPort(host)
	if err != nil || (scheme != "http" && scheme != "https") || !strings.HasPrefix(target, "/") {
		return "", errURI
	}
	host = strings.TrimSuffix(strings.ToLower(withoutZone(host)), ":")
	if scheme == "https" {
		host = strings.TrimSuffix(host, ":443")
	} else {
		host = strings.TrimSuffix(host, ":80")
	}
	uri := scheme + "://" + host + target
	if host == "" || strings.ContainsFunc(uri, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "", errURI
	}
	return uri, nil
}

// withoutZone removes the zone of an IPv6 address, which is never sent (RFC 6874 section 1).
func withoutZone(host string) string {
	end := strings.LastIndex(host, "]")
	if !strings.HasPrefix(host, "[") || end < 0 {
		return host
	}
	if zone := strings.LastIndex(host[:end], "%"); zone >= 0 {
		return host[:zone] + host[end:]
	}
	return host
}
