package inbox

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"spendhook/api/client"
	"spendhook/internal/httpsig"
	"spendhook/internal/keyset"
)

// The headers of a delivery.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
	headerSequence  = "Webhook-Sequence"
	headerPrevious  = "Webhook-Previous"
)

// minSecret is the minimum length of a secret, in bytes. With an empty one anybody can sign.
const minSecret = 24

var (
	// ErrInvalidMessage says that a message has no valid signature.
	ErrInvalidMessage = errors.New("the message has no valid signature")
	// ErrKeysUnavailable says that the published keys cannot be read now, so that the message can neither be accepted
	// nor refused.
	ErrKeysUnavailable = errors.New("the published keys cannot be read")
)

// VerifierOptions say which signatures a Verifier demands. Give Secrets, KeysURL, or both: then each demanded
// signature must be valid.
type VerifierOptions struct {
	// Secrets are the signing secrets of the subscriber, whsec_ and base64: several while a secret is rotated. They
	// demand a v1 signature of Standard Webhooks by one of them.
	Secrets []string
	// KeysURL is …/.well-known/webhook-keys/{companyUuid} of the daemon. With Origin it demands an HTTP message
	// signature (RFC 9421), without Origin a v1a signature of Standard Webhooks, by one of the keys there.
	KeysURL string
	// Origin is the start of the callback URL, up to what the request line has, such as https://hooks.example.com, in ASCII
	// and without a slash at its end. It is not taken from the Host header: a message to another receiver could be sent on with that.
	Origin string
	// Tolerance is how far webhook-timestamp may be off, for signatures of Standard Webhooks; 0: 5 minutes. HTTP message
	// signatures say themselves how long they are valid.
	Tolerance time.Duration
	// Client reads the keys; nil: http.DefaultClient.
	Client *http.Client
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// maxSignatures is how many v1a signatures of a message are tried.
const maxSignatures = 16

// Verifier verifies the signatures of deliveries. It is safe for concurrent use.
type Verifier struct {
	secrets   [][]byte
	messages  *client.MessageVerifier // nil: no HTTP message signatures are demanded
	keysURL   string                  // "" : no v1a signatures are demanded
	keys      keyset.Set
	client    *http.Client
	tolerance time.Duration
	now       func() time.Time
}

// NewVerifier returns a Verifier. It reads the keys with the first message.
func NewVerifier(o VerifierOptions) (*Verifier, error) {
	if len(o.Secrets) == 0 && o.KeysURL == "" {
		return nil, errors.New("a verifier needs secrets or the address of the published keys")
	}
	v := &Verifier{client: o.Client, tolerance: o.Tolerance, now: o.Now}
	if v.tolerance == 0 {
		v.tolerance = 5 * time.Minute
	}
	if v.now == nil {
		v.now = time.Now //nolint:forbidigo // the nil default
	}
	for _, secret := range o.Secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) < minSecret {
			return nil, fmt.Errorf("the signing secret is not whsec_ and base64 of at least %d bytes", minSecret)
		}
		v.secrets = append(v.secrets, key)
	}
	if o.KeysURL != "" && !isURL(o.KeysURL) {
		return nil, errors.New("the address of the published keys is not an http or https URL")
	}
	switch {
	case o.KeysURL != "" && o.Origin != "":
		if !isOrigin(o.Origin) { // no message would be valid
			return nil, errors.New("the origin must be like https://hooks.example.com, without a slash at its end")
		}
		v.messages = &client.MessageVerifier{KeysURL: o.KeysURL, Origin: o.Origin, Client: o.Client, Now: v.now}
	case o.Origin != "":
		return nil, errors.New("an origin needs the address of the published keys")
	default:
		v.keysURL = o.KeysURL
	}
	return v, nil
}

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != ""
}

// isOrigin reports whether the URL of a request line can continue a text.
func isOrigin(text string) bool {
	notVisible := func(c rune) bool { return c <= ' ' || c > '~' }
	return isURL(text) && !strings.ContainsAny(text, "?#@") && !strings.ContainsFunc(text, notVisible) && !strings.HasSuffix(text, "/")
}

// Verify returns nil if each demanded signature of the request is valid. body is all of the request's body. An error is
// ErrInvalidMessage: answer 401; or ErrKeysUnavailable: answer 503, so that the delivery is repeated. Verify may
// read the keys.
func (v *Verifier) Verify(r *http.Request, body []byte) error {
	if len(v.secrets) > 0 {
		if err := v.verifyStandard(r.Header, body, "v1,", v.bySecret()); err != nil {
			return err
		}
	}
	if v.keysURL != "" {
		return v.verifyPublic(r.Context(), r.Header, body)
	}
	if v.messages == nil {
		return nil
	}
	err := v.messages.Verify(r, body)
	if err != nil && !errors.Is(err, client.ErrInvalidMessage) {
		return fmt.Errorf("%w: %w", ErrKeysUnavailable, err)
	}
	if err == nil && r.Header.Get(headerID) == "" {
		err = errors.New("webhook-id is empty")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidMessage, err)
	}
	return nil
}

// verifyStandard checks id, timestamp and the signatures of one version (Standard Webhooks 1.0.0, "Signature scheme").
// signed reports whether a signature of a message is valid.
func (v *Verifier) verifyStandard(header http.Header, body []byte, version string, signed func(message []byte, signature string) bool) error {
	id, at := header.Get(headerID), header.Get(headerTimestamp)
	if id == "" {
		return fmt.Errorf("%w: webhook-id is missing", ErrInvalidMessage)
	}
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil || strings.ContainsFunc(at, notDigit) {
		return fmt.Errorf("%w: webhook-timestamp is not a number", ErrInvalidMessage)
	}
	age := v.now().Sub(time.Unix(seconds, 0))
	if age.Truncate(time.Second) > v.tolerance || age < -v.tolerance {
		return fmt.Errorf("%w: webhook-timestamp is of another time", ErrInvalidMessage)
	}
	message := append([]byte(id+"."+at+"."), body...)
	for text := range strings.FieldsSeq(header.Get(headerSignature)) {
		if signature, ok := strings.CutPrefix(text, version); ok && signed(message, signature) {
			return nil
		}
	}
	return fmt.Errorf("%w: no %s signature is valid", ErrInvalidMessage, strings.TrimSuffix(version, ","))
}

func notDigit(c rune) bool { return c < '0' || c > '9' }

// bySecret computes each MAC once: anybody can send thousands of signatures.
func (v *Verifier) bySecret() func(message []byte, signature string) bool {
	var macs [][]byte
	return func(message []byte, signature string) bool {
		given, err := base64.StdEncoding.DecodeString(signature)
		if err != nil || len(given) != sha256.Size {
			return false
		}
		if macs == nil {
			for _, secret := range v.secrets {
				h := hmac.New(sha256.New, secret)
				h.Write(message)
				macs = append(macs, h.Sum(nil))
			}
		}
		return slices.ContainsFunc(macs, func(mac []byte) bool { return hmac.Equal(given, mac) }) // in constant time
	}
}

// verifyPublic checks v1a signatures. If no key matches, it reads the keys again: they may have been rotated.
func (v *Verifier) verifyPublic(ctx context.Context, header http.Header, body []byte) error {
	from := keyset.Source{URL: v.keysURL, Client: v.client, Now: v.now()}
	read := v.keys.Known
	for again := false; ; again = true {
		keys, err := read(ctx, from)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrKeysUnavailable, err)
		}
		tried := 0
		err = v.verifyStandard(header, body, "v1a,", func(message []byte, signature string) bool {
			tried++ // each costs time, and anybody can send them
			return tried <= maxSignatures && byKey(keys, message, signature)
		})
		if err == nil || again {
			return err
		}
		read = v.keys.Again
	}
}

func byKey(keys []httpsig.JWK, message []byte, signature string) bool {
	given, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		return false
	}
	for _, key := range keys {
		public, err := key.Public()
		if err != nil {
			continue // of a type that Spendhook does not sign with
		}
		if public, ok := public.(ed25519.PublicKey); ok && ed25519.Verify(public, message, given) {
			return true
		}
	}
	return false
}
