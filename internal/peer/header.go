package peer

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"net/url"
	"strings"

	"github.com/dunglas/httpsfv"
)

// parseHeader reads the lines of a Client-Cert field (RFC 9440 section 2.2):
// one byte sequence of RFC 8941 that holds the certificate's DER. The error is
// ErrMalformed.
func parseHeader(lines []string) (*x509.Certificate, error) {
	item, err := httpsfv.UnmarshalItem(lines)
	if err != nil {
		return nil, ErrMalformed // the library's text may repeat the value
	}
	der, ok := item.Value.([]byte)
	if !ok {
		return nil, ErrMalformed
	}
	return parse(der)
}

// parseXFCC reads the lines of an X-Forwarded-Client-Cert field, as Envoy
// writes it. Of several elements the last counts, the one of the nearest proxy.
// A last element without Cert names no certificate: the result is nil then.
// The error is ErrMalformed, also for a Hash that is not the certificate's.
func parseXFCC(lines []string) (*x509.Certificate, error) {
	pairs, err := lastElement(strings.Join(lines, ","))
	if err != nil {
		return nil, err
	}
	text, given := pairs["cert"]
	if !given {
		return nil, nil //nolint:nilnil // no certificate is no error
	}
	decoded, err := url.PathUnescape(text)
	if err != nil {
		return nil, ErrMalformed
	}
	block, rest := pem.Decode([]byte(decoded))
	if block == nil || block.Type != "CERTIFICATE" || strings.TrimSpace(string(rest)) != "" {
		return nil, ErrMalformed
	}
	if hash, given := pairs["hash"]; given && !isHash(hash, block.Bytes) {
		return nil, ErrMalformed
	}
	return parse(block.Bytes)
}

func parse(der []byte) (*x509.Certificate, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, ErrMalformed
	}
	return cert, nil
}

func isHash(text string, der []byte) bool {
	want := sha256.Sum256(der)
	got, err := hex.DecodeString(text)
	return err == nil && string(got) == string(want[:])
}

// lastElement returns the pairs of the last element of an XFCC value, by lower-case key. It reads
// all elements, and refuses the value if one of them is malformed. Cert and Hash may occur once in
// an element, other keys more often.
func lastElement(value string) (map[string]string, error) {
	pairs := map[string]string{}
	for {
		key, rest, ok := strings.Cut(value, "=")
		if key = strings.ToLower(strings.TrimSpace(key)); !ok || key == "" || strings.ContainsAny(key, `",;`) {
			return nil, ErrMalformed
		}
		text, rest, ok := cutValue(rest)
		if _, twice := pairs[key]; !ok || (twice && (key == "cert" || key == "hash")) {
			return nil, ErrMalformed
		}
		pairs[key] = text
		if rest == "" {
			return pairs, nil
		}
		if rest[0] == ',' {
			pairs = map[string]string{}
		}
		value = rest[1:]
	}
}

// cutValue splits a value, quoted when it has one of ",;=, from the rest, which begins with the
// separator. In quotes, a backslash escapes the next character. cutValue does not remove backslashes:
// neither a Cert nor a Hash contains one.
func cutValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s+",", ",;")
		return strings.TrimSpace(s[:end]), s[end:], !strings.Contains(s[:end], `"`)
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			rest = strings.TrimLeft(s[i+1:], " \t")
			return s[1:i], rest, rest == "" || rest[0] == ',' || rest[0] == ';'
		}
	}
	return "", "", false
}
