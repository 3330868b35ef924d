// Package httpsig signs webhook requests with HTTP Message Signatures (RFC 9421) and a digest of the
// body (RFC 9530), for senders, and verifies them, for receivers. It does no I/O and has no clock.
package httpsig

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// The headers of a signed request (RFC 9530 section 2, RFC 9421 sections 4.1 and 4.2).
const (
	HeaderDigest    = "Content-Digest"
	HeaderInput     = "Signature-Input"
	HeaderSignature = "Signature"
)

const (
	tag   = "webhook" // the parameter by which receivers know the signature
	label = "webhook" // of the signature in both headers
)

// The parameters of a signature (RFC 9421 section 2.3).
const (
	paramCreated = "created"
	paramExpires = "expires"
	paramKeyID   = "keyid"
	paramAlg     = "alg"
	paramTag     = "tag"
)

// Message is what Sign signs of a request. Each member but Body is required, unless it says
// otherwise, and is sent as it is.
type Message struct {
	Method      string
	URL         *url.URL // that net/http gets; Sign does not change it
	ContentType string   // the header Content-Type
	Body        []byte   // may be empty
	ID          string   // the header webhook-id
	Timestamp   string   // the header webhook-timestamp: created, in unix seconds
	Sequence    string   // the header webhook-sequence; "" for none, then it is not covered
	Previous    string   // the header webhook-previous; likewise
}

// Headers are the values that Sign adds to a request.
type Headers struct {
	Digest    string // of HeaderDigest
	Input     string // of HeaderInput
	Signature string // of HeaderSignature
}

// Sign signs a request. The signature covers the method, the target URI, Content-Digest (SHA-256),
// Content-Type, webhook-id, webhook-timestamp, webhook-sequence and webhook-previous, in this order. Its tag and its label are
// "webhook". It is valid from created for lifetime, at least a second; both are cut to seconds.
//
// An error is returned if a member of the message is missing, is not ASCII or has control characters, which
// a signature base cannot have (RFC 9421 section 2.5), and if the key fails. Sign waits for the
// key. Safe for concurrent use.
func Sign(key Key, m Message, created time.Time, lifetime time.Duration) (Headers, error) {
	if lifetime < time.Second {
		return Headers{}, errors.New("sign a message: the lifetime is less than a second")
	}
	digest := contentDigest(m.Body)
	covered, err := m.components(digest)
	if err != nil {
		return Headers{}, fmt.Errorf("sign a message: %w", err)
	}
	if strings.ContainsFunc(key.ID()+key.Algorithm(), needsQuoting) {
		return Headers{}, errors.New("sign a message: the id or the algorithm of the key has other characters than letters, digits, - and _")
	}
	input := signatureInput(covered, created.Unix(), created.Unix()+int64(lifetime/time.Second), key)
	signature, err := key.Sign(signatureBase(covered, input))
	switch {
	case err != nil:
		return Headers{}, fmt.Errorf("sign a message: %w", err)
	case len(signature) != signatureSize: // for example DER, as many systems return it
		return Headers{}, fmt.Errorf("sign a message: the key returned a signature of %d bytes, not %d", len(signature), signatureSize)
	}
	return Headers{digest, label + "=" + input, label + "=" + byteSequence(signature)}, nil
}

func needsQuoting(c rune) bool {
	return c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

// signatureInput serialises the names of the components with the parameters of the signature, as httpsfv does (see
// its test) with many more allocations. Times are in unix seconds.
func signatureInput(covered []component, created, expires int64, key Key) string {
	out := make([]byte, 0, 320)
	for i, c := range covered {
		out = append(out, " \""...)
		if i == 0 {
			out[0] = '('
		}
		out = append(append(out, c.name...), '"')
	}
	out = strconv.AppendInt(append(out, ");"+paramCreated+"="...), created, 10)
	out = strconv.AppendInt(append(out, ";"+paramExpires+"="...), expires, 10)
	out = append(append(out, ";"+paramKeyID+"=\""...), key.ID()...)
	out = append(append(out, "\";"+paramAlg+"=\""...), key.Algorithm()...)
	return string(append(out, "\";"+paramTag+"=\""+tag+"\""...))
}

func (m *Message) components(digest string) ([]component, error) {
	uri, err := sentURI(m.URL)
	if err != nil {
		return nil, err
	}
	if !httpguts.ValidHeaderFieldName(m.Method) { // a method is a token, too (RFC 9110 section 9.1)
		return nil, errors.New("the method is not a token")
	}
	values := [...]string{m.Method, uri, digest, m.ContentType, m.ID, m.Timestamp}
	covered := make([]component, 0, len(required)+len(optional))
	for i, name := range required {
		covered = append(covered, component{name, values[i]})
	}
	for i, value := range [...]string{m.Sequence, m.Previous} {
		if value != "" {
			covered = append(covered, component{optional[i], value})
		}
	}
	for i, c := range covered {
		if covered[i].value, err = fieldValue(c.value); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		if covered[i].value == "" { // receivers may not tell this from a header that is missing
			return nil, fmt.Errorf("%s is empty", c.name)
		}
	}
	return covered, nil
}

// contentDigest is the value of Content-Digest for a body (RFC 9530 section 2).
func contentDigest(body []byte) string {
	sum := sha256.Sum256(body)
	return digestSHA256 + "=" + byteSequence(sum[:])
}

// byteSequence serialises bytes (RFC 9651 section 4.1.8).
func byteSequence(raw []byte) string { return ":" + base64.StdEncoding.EncodeToString(raw) + ":" }
