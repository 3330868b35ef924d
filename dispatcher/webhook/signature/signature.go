// Package signature signs messages as Standard Webhooks 1.0.0 says, for senders, and
// verifies them, for receivers.
package signature

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/subscribers"
)

// The headers of Standard Webhooks 1.0.0, in its own spelling.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
	HeaderSequence  = "webhook-sequence" // not of Standard Webhooks, and not covered by its signatures: the event's number in its company
	HeaderPrevious  = "webhook-previous" // likewise: the number of the event that this subscriber was to get before
)

// Prefixes of keys and signatures (Standard Webhooks 1.0.0, "Signature scheme").
const (
	secretPrefix    = "whsec_"
	publicKeyPrefix = "whpk_"
	schemeV1        = "v1,"
	schemeV1a       = "v1a,"
)

// minSecret is the minimum length of a secret, in bytes (Standard Webhooks 1.0.0, "Signature scheme").
// With an empty secret anybody can sign.
const minSecret = 24

var (
	errNoSecret  = errors.New("a signer needs at least one secret")
	errBadSecret = fmt.Errorf("the signing secret is not whsec_ and base64 of at least %d bytes", minSecret)
)

// V1 is one symmetric signature, "v1,<base64>", of id.timestamp.body under
// a whsec_ secret; ts is in unix seconds. For many messages use a Signer.
func V1(secret, id string, ts int64, body []byte) (string, error) {
	key, err := newHMACKey(secret)
	if err != nil {
		return "", err
	}
	return string(key.append(nil, signedPrefix(nil, id, ts), body)), nil
}

// Signer makes the webhook-signature header of one subscriber: a v1 signature
// for each secret that has not expired, and a v1a signature when the company has a
// private key. It decodes the keys once. Safe for concurrent use.
type Signer struct {
	secrets    []signerSecret
	asymmetric ed25519.PrivateKey
}

type signerSecret struct {
	key       *hmacKey
	expiresAt time.Time // zero: never
}

// New makes a Signer of a subscriber's secrets, newest first; the newest
// signs even if expired, so that nothing is sent unsigned. asymmetric
// is the company's ed25519 key, or nil for no v1a signature.
func New(secrets []subscribers.SigningSecret, asymmetric ed25519.PrivateKey) (*Signer, error) {
	if len(secrets) == 0 {
		return nil, errNoSecret
	}
	s := &Signer{asymmetric: asymmetric}
	for i, secret := range secrets {
		key, err := newHMACKey(secret.Key.Reveal())
		if err != nil {
			return nil, err
		}
		s.secrets = append(s.secrets, signerSecret{key: key})
		if i > 0 && secret.ExpiresAt != nil {
			s.secrets[i].expiresAt = *secret.ExpiresAt
		}
	}
	return s, nil
}

// Sign is the value of HeaderSignature for a message sent at ts, in unix seconds.
func (s *Signer) Sign(id string, ts int64, body []byte) string {
	var space [256]byte
	prefix := signedPrefix(space[:0], id, ts)
	out := make([]byte, 0, 128)
	for _, secret := range s.secrets {
		if !secret.expiresAt.IsZero() && secret.expiresAt.Unix() <= ts {
			continue
		}
		if len(out) > 0 {
			out = append(out, ' ')
		}
		out = secret.key.append(out, prefix, body)
	}
	if s.asymmetric != nil {
		message := append(slices.Clip(prefix), body...)
		out = appendScheme(append(out, ' '), schemeV1a, ed25519.Sign(s.asymmetric, message)) // the newest secret has signed before
	}
	return string(out)
}

func appendScheme(out []byte, scheme string, sum []byte) []byte {
	return base64.StdEncoding.AppendEncode(append(out, scheme...), sum)
}

func signedPrefix(dst []byte, id string, ts int64) []byte {
	dst = append(append(dst, id...), '.')
	return append(strconv.AppendInt(dst, ts, 10), '.')
}

// hmacKey keeps the hashes of one key ready: setting one up costs more than
// hashing a small body.
type hmacKey struct{ pool sync.Pool }

func decodeSecret(secret string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
	if err != nil || len(key) < minSecret {
		return nil, errBadSecret
	}
	return key, nil
}

func decodePublicKey(encoded string) (ed25519.PublicKey, error) {
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, errors.New("the public key is not whpk_ and base64 of 32 bytes")
	}
	return key, nil
}

// Check returns an error unless Verify can use the key: a whsec_ secret of at least 24 bytes, or a whpk_
// public key.
func Check(key string) error {
	if public, ok := strings.CutPrefix(key, publicKeyPrefix); ok {
		_, err := decodePublicKey(public)
		return err
	}
	_, err := decodeSecret(key)
	return err
}

func newHMACKey(secret string) (*hmacKey, error) {
	key, err := decodeSecret(secret)
	if err != nil {
		return nil, err
	}
	return &hmacKey{pool: sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}}, nil
}

func (k *hmacKey) append(out, prefix, body []byte) []byte {
	h := k.pool.Get().(hash.Hash)
	h.Reset()
	h.Write(prefix)
	h.Write(body)
	var sum [sha256.Size]byte
	out = appendScheme(out, schemeV1, h.Sum(sum[:0]))
	k.pool.Put(h)
	return out
}

// Verify checks the signature headers of a received message against a whsec_
// secret (v1) or a whpk_ public key (v1a), and that its timestamp lies within
// tolerance of now on either side. The errors are those of the
// standard-webhooks library where it has one (errors.Is).
func Verify(secret string, headers http.Header, body []byte, tolerance time.Duration, now time.Time) error {
	if public, ok := strings.CutPrefix(secret, publicKeyPrefix); ok {
		if err := verifyV1a(public, headers, body); err != nil {
			return err
		}
	} else if key, err := decodeSecret(secret); err != nil {
		return err
	} else if wh, err := standardwebhooks.NewWebhookRaw(key); err != nil {
		return errBadSecret
	} else if err := wh.VerifyIgnoringTimestamp(body, headers); err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(headers.Get(HeaderTimestamp), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %w", standardwebhooks.ErrInvalidHeaders, err)
	}
	age := now.Sub(time.Unix(seconds, 0))
	switch {
	case age > tolerance:
		return standardwebhooks.ErrMessageTooOld
	case age < -tolerance:
		return standardwebhooks.ErrMessageTooNew
	}
	return nil
}

// verifyV1a verifies ed25519 signatures, which the library does not support.
func verifyV1a(public string, headers http.Header, body []byte) error {
	key, err := decodePublicKey(public)
	if err != nil {
		return err
	}
	id, ts, sigs := headers.Get(HeaderID), headers.Get(HeaderTimestamp), headers.Get(HeaderSignature)
	if id == "" || ts == "" || sigs == "" {
		return standardwebhooks.ErrRequiredHeaders
	}
	message := append([]byte(id+"."+ts+"."), body...)
	for sig := range strings.FieldsSeq(sigs) {
		encoded, ok := strings.CutPrefix(sig, schemeV1a)
		if !ok {
			continue
		}
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err == nil && ed25519.Verify(key, message, raw) {
			return nil
		}
	}
	return standardwebhooks.ErrNoMatchingSignature
}
