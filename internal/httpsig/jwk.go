package httpsig

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// coordinateSize is the size of the members x and y, in bytes.
const coordinateSize = 32

// The values of a JWK's members (RFC 7518 sections 3.1 and 6.2.1, RFC 8037 sections 2 and 3.1).
const (
	ktyOKP     = "OKP"
	ktyEC      = "EC"
	crvEd25519 = "Ed25519"
	crvP256    = "P-256"
	useSig     = "sig"
	jwkEdDSA   = "EdDSA"
	jwkEd25519 = "Ed25519" // RFC 9864: EdDSA with this curve
	jwkES256   = "ES256"
)

// JWK is a public key as a member of a JWK Set (RFC 7517): ed25519 (RFC 8037 section 2) or P-256 (RFC
// 7518 section 6.2.1). x and y are base64url without padding.
type JWK struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	Y   string `json:"y,omitzero"` // EC only
	Kid string `json:"kid"`
	Use string `json:"use"`
	Alg string `json:"alg"`
}

// PublicJWK returns the JWK of an ed25519.PublicKey or of an *ecdsa.PublicKey of the curve P-256. Its
// kid is its thumbprint (RFC 7638; SHA-256, base64url without padding). Other keys are an error.
func PublicJWK(public crypto.PublicKey) (JWK, error) {
	jwk := JWK{Use: useSig}
	switch public := public.(type) {
	case ed25519.PublicKey:
		if len(public) != ed25519.PublicKeySize {
			return JWK{}, errors.New("an ed25519 public key has 32 bytes")
		}
		jwk.Kty, jwk.Crv, jwk.Alg = ktyOKP, crvEd25519, jwkEdDSA
		jwk.X = base64.RawURLEncoding.EncodeToString(public)
	case *ecdsa.PublicKey:
		if public.Curve != elliptic.P256() {
			return JWK{}, errors.New("an ECDSA key must be of the curve P-256")
		}
		point, err := public.Bytes() // 4, x, y
		if err != nil {
			return JWK{}, err
		}
		jwk.Kty, jwk.Crv, jwk.Alg = ktyEC, crvP256, jwkES256
		jwk.X = base64.RawURLEncoding.EncodeToString(point[1 : 1+coordinateSize])
		jwk.Y = base64.RawURLEncoding.EncodeToString(point[1+coordinateSize:])
	default:
		return JWK{}, fmt.Errorf("a %T cannot verify HTTP message signatures", public)
	}
	jwk.Kid = jwk.thumbprint()
	return jwk, nil
}

// thumbprint hashes the required members in the order of their names (RFC 7638 section 3.2). None of
// their values has a character that JSON escapes.
func (k JWK) thumbprint() string {
	members := `{"crv":"` + k.Crv + `","kty":"` + k.Kty + `","x":"` + k.X
	if k.Kty == ktyEC {
		members += `","y":"` + k.Y
	}
	sum := sha256.Sum256([]byte(members + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Public returns the key: an ed25519.PublicKey, or an *ecdsa.PublicKey whose point is on the curve P-256. An
// error is returned for other types, for coordinates that do not have 32 bytes, and if use or alg
// is given and is not that of a signature with this type. 32 bytes that are no point of ed25519
// are not noticed here; they verify nothing.
func (k JWK) Public() (crypto.PublicKey, error) {
	if k.Use != "" && k.Use != useSig {
		return nil, errors.New("the key's use is not sig")
	}
	x, err := decodeCoordinate("x", k.X)
	if err != nil {
		return nil, err
	}
	switch {
	case k.Kty == ktyOKP && k.Crv == crvEd25519:
		if k.Alg != "" && k.Alg != jwkEdDSA && k.Alg != jwkEd25519 {
			return nil, errors.New("the key's alg is not EdDSA")
		}
		return ed25519.PublicKey(x), nil
	case k.Kty == ktyEC && k.Crv == crvP256:
		if k.Alg != "" && k.Alg != jwkES256 {
			return nil, errors.New("the key's alg is not ES256")
		}
		y, err := decodeCoordinate("y", k.Y)
		if err != nil {
			return nil, err
		}
		return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	}
	return nil, errors.New("the key is neither OKP with Ed25519 nor EC with P-256")
}

func decodeCoordinate(name, text string) ([]byte, error) {
	// The decoder skips line breaks, so the length of the text counts too.
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != coordinateSize || len(text) != base64.RawURLEncoding.EncodedLen(coordinateSize) {
		return nil, fmt.Errorf("the key's %s is not base64url of %d bytes", name, coordinateSize)
	}
	return raw, nil
}
