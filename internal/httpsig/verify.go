package httpsig

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
	"golang.org/x/net/http/httpguts"
)

// Why Verify refuses a message (errors.Is).
var (
	// errUnsigned: no signature has the tag "webhook".
	errUnsigned = errors.New("the message has no webhook signature")
	// errUnacceptable: a header is malformed, or the signature does not cover what it must.
	errUnacceptable = errors.New("the webhook signature is not acceptable")
	// ErrUnknownKey: no key has the keyid. The sender may have a new key: read its JWK Set again,
	// but not for each such message, since anybody can send them.
	ErrUnknownKey = errors.New("the key of the webhook signature is not known")
	// errTime: the signature is not valid yet, or not any more, or webhook-timestamp is not
	// the time of the signature.
	errTime = errors.New("the webhook signature is of another time")
	// errMismatch: the message is not what was signed.
	errMismatch = errors.New("the webhook signature does not match the message")
)

// Algorithms of Content-Digest (RFC 9530 section 5).
const (
	digestSHA256 = "sha-256"
	digestSHA512 = "sha-512"
)

// Verify checks the signature with the tag "webhook" of a received request (RFC 9421 section 3.2), and the body
// against Content-Digest (RFC 9530 section 2). It returns nil if all of this holds, else one of the errors above:
//
//   - There is one signature with this tag, of a key of keys whose type is that of alg.
//   - It covers at least what Sign covers, and webhook-sequence and webhook-previous if the request has these headers. No
//     component is covered twice or has parameters (RFC 9421 section 2.1), and @method and @target-uri are the
//     only derived ones.
//   - now is from tolerance before created to tolerance after expires, and webhook-timestamp is
//     within tolerance of created. So a message is accepted for its lifetime and up to two tolerances.
//   - Content-Digest has the sha-256 of the body. A sha-512 in it must match, too; other
//     algorithms in it are ignored.
//
// header has canonical names, as servers of net/http make it. targetURI is the absolute URL of the request as
// its sender sees it. Take scheme, host and port from settings, not from the request: a valid message to another
// receiver, sent on with its Host, would be accepted. Take path and query from the request line,
// unchanged (http.Request.RequestURI).
//
// A valid message can be sent again: the caller drops repeats by webhook-id. Safe for concurrent use.
func Verify(header http.Header, method, targetURI string, body []byte, keys []JWK, tolerance time.Duration, now time.Time) error {
	s, err := find(header)
	if err != nil {
		return err
	}
	public, err := s.key(keys)
	if err != nil {
		return err
	}
	covered, err := s.components(header, method, targetURI)
	if err != nil {
		return err
	}
	if err := s.inTime(header, tolerance, now); err != nil {
		return err
	}
	params, err := httpsfv.Marshal(s.input)
	if err != nil {
		return refuse(HeaderInput, err)
	}
	if !valid(public, signatureBase(covered, params), s.signature) {
		return errMismatch
	}
	return checkDigest(header.Values(HeaderDigest), body)
}

func refuse(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", errUnacceptable, what, err)
}

func refusef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUnacceptable, fmt.Sprintf(format, args...))
}

// received is the signature of a request, not verified.
type received struct {
	input            httpsfv.InnerList
	signature        []byte
	created, expires int64 // unix seconds
	keyID, alg       string
}

// find returns the signature with the tag.
func find(header http.Header) (*received, error) {
	inputs, err := httpsfv.UnmarshalDictionary(header.Values(HeaderInput))
	if err != nil {
		return nil, refuse(HeaderInput, err)
	}
	var found string
	var s received
	for _, name := range inputs.Names() {
		member, _ := inputs.Get(name)
		list, ok := member.(httpsfv.InnerList)
		if !ok {
			continue // nothing that can be signed
		}
		if t, _ := parameter[string](list.Params, paramTag); t != tag {
			continue
		}
		if found != "" {
			return nil, refusef("more than one signature has the tag %s", tag)
		}
		found, s.input = name, list
	}
	if found == "" {
		return nil, errUnsigned
	}
	signatures, err := httpsfv.UnmarshalDictionary(header.Values(HeaderSignature))
	if err != nil {
		return nil, refuse(HeaderSignature, err)
	}
	if s.signature, err = byteMember(signatures, found); err != nil {
		return nil, refuse(HeaderSignature, err)
	}
	return &s, s.readParameters()
}

func (s *received) readParameters() error {
	var created, expires, keyID, alg bool
	s.created, created = parameter[int64](s.input.Params, paramCreated)
	s.expires, expires = parameter[int64](s.input.Params, paramExpires)
	s.keyID, keyID = parameter[string](s.input.Params, paramKeyID)
	s.alg, alg = parameter[string](s.input.Params, paramAlg)
	if !created || !expires || !keyID || !alg {
		return refusef("created, expires, keyid and alg are required")
	}
	return nil
}

func parameter[T any](params *httpsfv.Params, name string) (value T, ok bool) {
	bare, _ := params.Get(name)
	value, ok = bare.(T)
	return value, ok
}

// byteMember returns a member of a dictionary that is a byte sequence.
func byteMember(d *httpsfv.Dictionary, name string) ([]byte, error) {
	member, _ := d.Get(name)
	item, _ := member.(httpsfv.Item)
	raw, ok := item.Value.([]byte)
	if !ok {
		return nil, fmt.Errorf("%s is not a byte sequence", name)
	}
	return raw, nil
}

func (s *received) key(keys []JWK) (crypto.PublicKey, error) {
	for _, k := range keys {
		if k.Kid != s.keyID || s.keyID == "" {
			continue
		}
		public, err := k.Public()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnknownKey, err)
		}
		if algorithmOf(public) != s.alg {
			return nil, refusef("alg is not the algorithm of the key") // RFC 9421 section 3.2, step 6
		}
		return public, nil
	}
	return nil, ErrUnknownKey
}

// components returns the covered components with their values, if they are acceptable.
func (s *received) components(header http.Header, method, targetURI string) ([]component, error) {
	covered := make([]component, 0, len(s.input.Items))
	seen := make(map[string]bool, len(s.input.Items))
	for _, item := range s.input.Items {
		name, ok := item.Value.(string)
		switch {
		case !ok:
			return nil, refusef("a component is not a string")
		case len(item.Params.Names()) > 0:
			return nil, refusef("%s has parameters", name)
		case seen[name]:
			return nil, refusef("%s is covered twice", name)
		}
		seen[name] = true
		value, err := componentValue(name, header, method, targetURI)
		if err != nil {
			return nil, refuse(name, err)
		}
		covered = append(covered, component{name, value})
	}
	for _, name := range required {
		if !seen[name] {
			return nil, refusef("%s is not covered", name)
		}
	}
	for _, name := range optional {
		if len(header.Values(name)) > 0 && !seen[name] {
			return nil, refusef("%s is not covered", name)
		}
	}
	return covered, nil
}

func componentValue(name string, header http.Header, method, targetURI string) (string, error) {
	switch {
	case name == componentMethod:
		return fieldValue(method)
	case name == componentTargetURI:
		return receivedURI(targetURI)
	case !httpguts.ValidHeaderFieldName(name) || strings.ToLower(name) != name:
		return "", errors.New("is not known")
	}
	lines := header.Values(name)
	if len(lines) == 0 {
		return "", errors.New("is missing")
	}
	return fieldValue(lines...)
}

func (s *received) inTime(header http.Header, tolerance time.Duration, now time.Time) error {
	created, expires := time.Unix(s.created, 0), time.Unix(s.expires, 0)
	if created.Sub(now) > tolerance || now.Sub(expires) > tolerance {
		return errTime
	}
	seconds, err := strconv.ParseInt(strings.Trim(strings.Join(header.Values(componentTimestamp), ", "), " \t"), 10, 64)
	if err != nil {
		return refuse(componentTimestamp, err)
	}
	if age := time.Unix(seconds, 0).Sub(created); age > tolerance || age < -tolerance {
		return fmt.Errorf("%w: %s is not created", errTime, componentTimestamp)
	}
	return nil
}

func checkDigest(lines []string, body []byte) error {
	digests, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return refuse(HeaderDigest, err)
	}
	want, err := byteMember(digests, digestSHA256)
	if err != nil {
		return refuse(HeaderDigest, err)
	}
	if sum := sha256.Sum256(body); !bytes.Equal(want, sum[:]) {
		return fmt.Errorf("%w: %s", errMismatch, HeaderDigest)
	}
	if _, given := digests.Get(digestSHA512); !given {
		return nil
	}
	if want, err = byteMember(digests, digestSHA512); err != nil {
		return refuse(HeaderDigest, err)
	}
	if sum := sha512.Sum512(body); !bytes.Equal(want, sum[:]) {
		return fmt.Errorf("%w: %s", errMismatch, HeaderDigest)
	}
	return nil
}
