package callback

import (
	"cmp"
	"maps"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"

	"spendhook/internal/invalid"
	"spendhook/internal/secret"
)

const (
	maxHeaders     = 20
	maxHeaderName  = 100  // bytes
	maxHeaderValue = 4096 // bytes
	maxHeaderBytes = 8192 // of all names and values
)

// Header is a field that is sent with every delivery to a subscriber. Its name
// is in the canonical form of net/http.
type Header struct {
	Name   string      `json:"name"`
	Value  secret.Text `json:"-"`
	Sealed string      `json:"value"` // the Value as it is stored; "" when it was opened
	Locked error       `json:"-"`     // why the Value cannot be decrypted; else nil

	Unknown *jsontext.Value `json:",embed"` // as of a Subscriber
}

// HiddenValue is shown in place of header values. It cannot be set as a value, so that a client
// does not write it back by mistake.
const HiddenValue = "***"

// reservedHeaders may not be set: they belong to the delivery itself, to its
// connection (RFC 9110, 7.6.1), or to proxies. Cookies are state of
// a browser's session. A fixed Idempotency-Key would make all events duplicates.
var reservedHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Digest", "Content-Encoding", "Content-Length", "Content-Type", "Cookie", "Cookie2",
	"Date", "Expect", "Forwarded", "Host", "Http2-Settings", "Idempotency-Key", "Keep-Alive", "Set-Cookie",
	"Signature", "Signature-Input", "Te", "Traceparent", "Tracestate", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Via",
}

// reservedPrefixes are headers of Standard Webhooks, and headers in which proxies name
// their client, which a receiver may trust.
var reservedPrefixes = []string{"Client-Cert", "Proxy-", "Webhook-", "X-Envoy-", "X-Forwarded-", "X-Original-", "X-Rewrite-"}

// reservedSuffixes end the names of headers in which proxies and content networks name their client.
var reservedSuffixes = []string{
	"-Client-Ip", "-Clientip", "-Connecting-Ip", "-Connecting-Ipv6", "-Forwarded", "-Forwarded-For", "-Real-Ip", "-Remote-Addr", "-Remote-Ip", "-User-Ip",
	"-Method-Override",
}

func reserved(name string) bool {
	return slices.ContainsFunc(reservedSuffixes, func(s string) bool { return strings.HasSuffix("-"+name, s) }) || slices.Contains(reservedHeaders, name) ||
		slices.ContainsFunc(reservedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// CheckHeaders returns changes of headers by canonical name. A nil value removes the header.
func CheckHeaders(problems *invalid.Error, given map[string]*secret.Text) map[string]*secret.Text {
	changes := make(map[string]*secret.Text, len(given))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !checkHeaderName(problems, name) {
			continue
		}
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		field := headerField(name)
		if _, twice := changes[canonical]; twice {
			problems.Add(field, "DUPLICATE", "is given twice in different letter case")
			continue
		}
		if reserved(canonical) {
			problems.Add(field, "RESERVED", "cannot be set: it belongs to the delivery or to its connection")
		}
		if given[name] != nil {
			checkHeaderValue(problems, field, given[name].Reveal())
		}
		changes[canonical] = given[name]
	}
	return changes
}

// headerField is the JSON pointer (RFC 6901) to a header, as it was sent.
func headerField(name string) string { return "/headers/" + strings.ReplaceAll(name, "~", "~0") }

// checkHeaderName never repeats an invalid name: it may be a misplaced value.
func checkHeaderName(problems *invalid.Error, name string) bool {
	if len(name) <= maxHeaderName && httpguts.ValidHeaderFieldName(name) {
		return true
	}
	problems.Add("headers", "INVALID", "names must be 1 to %d of the characters of an HTTP field name (RFC 9110, 5.1)", maxHeaderName)
	return false
}

func checkHeaderValue(problems *invalid.Error, field, value string) {
	switch {
	case len(value) > maxHeaderValue:
		problems.Add(field, "TOO_LONG", "must be at most %d bytes", maxHeaderValue)
	case strings.Trim(value, " \t") != value || value == "":
		problems.Add(field, "INVALID", "must not be empty, nor begin or end with white space")
	case value == HiddenValue:
		problems.Add(field, "INVALID", "is what is shown in place of a value: send the value itself, or leave the header out")
	case strings.ContainsFunc(value, func(c rune) bool { return (c < ' ' && c != '\t') || c > '~' }):
		problems.Add(field, "INVALID", "must be printable ASCII")
	}
}

// ChangeHeaders returns headers, by name, after changes that CheckHeaders has passed.
func ChangeHeaders(problems *invalid.Error, headers []Header, changes map[string]*secret.Text) []Header {
	var after []Header
	for _, h := range headers {
		if _, named := changes[h.Name]; !named {
			after = append(after, h)
		}
	}
	for name, value := range changes {
		if value != nil {
			after = append(after, Header{Name: name, Value: *value})
		}
	}
	slices.SortFunc(after, func(a, b Header) int { return cmp.Compare(a.Name, b.Name) })
	checkTotal(problems, after)
	return after
}

func checkTotal(problems *invalid.Error, headers []Header) {
	total := 0
	for _, h := range headers {
		total += len(h.Name) + len(h.Value)
	}
	switch {
	case len(headers) > maxHeaders:
		problems.Add("headers", "TOO_MANY", "would be %d, at most %d are allowed", len(headers), maxHeaders)
	case total > maxHeaderBytes:
		problems.Add("headers", "TOO_LONG", "would be %d bytes in all, at most %d are allowed", total, maxHeaderBytes)
	}
}

// KeepAtOrigin reports headers that would be sent to another origin than the one that they were
// given for. The API does not show their values. A caller that may change the URL could otherwise
// have them sent to its own server. from and to are normalised URLs.
func KeepAtOrigin(problems *invalid.Error, headers []Header, changes map[string]*secret.Text, from, to string) {
	if origin(from) == origin(to) {
		return
	}
	for _, h := range headers {
		if _, named := changes[h.Name]; !named {
			problems.Add(headerField(h.Name), "REQUIRED", "must be given again, or removed with null, when callbackUrl moves to another origin")
		}
	}
}

func origin(normal string) string {
	u, err := url.Parse(normal)
	if err != nil {
		return normal
	}
	return u.Scheme + "://" + u.Host
}
