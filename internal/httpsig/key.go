package httpsig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
)

// Algorithms, by their names in the registry of RFC 9421 (section 6.2.2).
const (
	algEd25519 = "ed25519"           // section 3.3.6
	algES256   = "ecdsa-p256-sha256" // section 3.3.4
)

// signatureSize is that of both algorithms, in bytes.
const signatureSize = 64

// Key signs. What it signs has a digest of the body, not the body, so that a key may be kept
// in another system. Implementations are safe for concurrent use.
type Key interface {
	// ID is the keyid, by which receivers find the public key: letters, digits, - and _.
	ID() string
	// Algorithm is "ed25519" or "ecdsa-p256-sha256" (RFC 9421 section 6.2.2).
	Algorithm() string
	// Sign returns the signature of a signature base: 64 bytes. An ECDSA signature is r and
	// then s (RFC 9421 section 3.3.4), not DER. Sign does not keep the base. It may block.
	Sign(base []byte) ([]byte, error)
}

type ed25519Key struct {
	id      string
	private ed25519.PrivateKey
}

// NewKey returns a Key of an ed25519.PrivateKey (RFC 9421 section 3.3.6), or of an *ecdsa.PrivateKey of the curve
// P-256 (section 3.3.4). Its id is the kid of PublicJWK. Other keys are an error.
func NewKey(private crypto.Signer) (Key, error) {
	if k, ok := private.(ed25519.PrivateKey); ok && len(k) != ed25519.PrivateKeySize {
		return nil, errors.New("an ed25519 private key has 64 bytes")
	}
	jwk, err := PublicJWK(private.Public())
	if err != nil {
		return nil, err
	}
	switch private := private.(type) {
	case ed25519.PrivateKey:
		return &ed25519Key{jwk.Kid, private}, nil
	case *ecdsa.PrivateKey:
		return &es256Key{jwk.Kid, private}, nil
	}
	return nil, fmt.Errorf("a %T cannot make HTTP message signatures", private)
}

func (k *ed25519Key) ID() string                       { return k.id }
func (k *ed25519Key) Algorithm() string                { return algEd25519 }
func (k *ed25519Key) Sign(base []byte) ([]byte, error) { return ed25519.Sign(k.private, base), nil }

type es256Key struct {
	id      string
	private *ecdsa.PrivateKey
}

func (k *es256Key) ID() string        { return k.id }
func (k *es256Key) Algorithm() string { return algES256 }

func (k *es256Key) Sign(base []byte) ([]byte, error) {
	sum := sha256.Sum256(base)
	r, s, err := ecdsa.Sign(rand.Reader, k.private, sum[:])
	if err != nil {
		return nil, err
	}
	raw := make([]byte, signatureSize)
	r.FillBytes(raw[:signatureSize/2])
	s.FillBytes(raw[signatureSize/2:])
	return raw, nil
}

// algorithmOf is the one algorithm that a public key of JWK.Public is used with.
func algorithmOf(public crypto.PublicKey) string {
	if _, ok := public.(ed25519.PublicKey); ok {
		return algEd25519
	}
	return algES256
}

// valid reports whether the signature of base was made with the private key of a key of
// JWK.Public.
func valid(public crypto.PublicKey, base, signature []byte) bool {
	if len(signature) != signatureSize {
		return false
	}
	switch public := public.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(public, base, signature)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(base)
		var r, s big.Int
		r.SetBytes(signature[:signatureSize/2])
		s.SetBytes(signature[signatureSize/2:])
		return ecdsa.Verify(public, sum[:], &r, &s)
	}
	return false
}
