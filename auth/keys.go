package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jwt"
)

const (
	keyFile  = "token-key.pem"
	pemType  = "PRIVATE KEY"
	audience = "spendhook" // of every access token
)

// The scopes that a token may carry.
var knownScopes = []string{
	"subscribers:read", "subscribers:write", "events:read", "events:write",
	"deliveries:read", "deliveries:write", "cards:read", "cards:write",
	"reimbursements:read", "locations:read", "billing:read", "platform", "operator",
}

// KnownScopes lists the scopes that a token may carry.
func KnownScopes() []string { return slices.Clone(knownScopes) }

// KeyStore holds the key (ECDSA P-256) that signs this daemon's own access
// tokens. It is immutable and safe for concurrent use.
type KeyStore struct {
	issuer          string
	private, public jwk.Key
}

// OpenKeys loads the signing key from dir, or makes one and keeps it there with
// mode 0600. Processes that open the same directory at once get the same key.
// Issuer is the "iss" of the tokens it mints and accepts.
func OpenKeys(dir, issuer string) (*KeyStore, error) {
	path := filepath.Join(dir, keyFile)
	key, err := loadKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = createKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("token key %s: %w", path, err)
	}
	return newKeyStore(key, issuer)
}

func newKeyStore(key *ecdsa.PrivateKey, issuer string) (*KeyStore, error) {
	private, err := jwk.Import(key)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		jwk.AssignKeyID(private), // its RFC 7638 thumbprint
		private.Set(jwk.AlgorithmKey, jwa.ES256()),
		private.Set(jwk.KeyUsageKey, jwk.ForSignature),
	); err != nil {
		return nil, err
	}
	public, err := private.PublicKey()
	if err != nil {
		return nil, err
	}
	return &KeyStore{issuer: issuer, private: private, public: public}, nil
}

func loadKey(path string) (*ecdsa.PrivateKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("mode %v lets everyone use it; set 0600", info.Mode().Perm())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseKey(text)
}

func parseKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemType {
		return nil, errors.New("is not a PEM " + pemType)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("is not an ECDSA P-256 key")
	}
	return key, nil
}

// createKey writes a new key whole under another name and then links it, so
// that of two processes at once one wins and both read the same.
func createKey(path string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	temp, err := writeTemp(filepath.Dir(path), pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(temp) }() // it has the key's name by now
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return loadKey(path)
}

// writeTemp writes data to a new file (mode 0600) in dir, down to the disk.
func writeTemp(dir string, data []byte) (name string, err error) {
	f, err := os.CreateTemp(dir, ".token-key-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	return f.Name(), errors.Join(err, f.Sync(), f.Close())
}

// JWKS lists the public keys that verify the tokens (RFC 7517).
func (k *KeyStore) JWKS() []jwk.Key { return []jwk.Key{k.public} }

// Grant is what a minted token allows. A nil Company ties it to none; the
// token names no client without a ClientID, and is bound to no certificate
// without a Thumbprint ("x5t#S256").
type Grant struct {
	Subject    string
	ClientID   string
	Company    *uuid.UUID
	Scopes     []string
	Thumbprint string
	TTL        time.Duration
}

// Mint returns an access token (JWT, ES256) for grant, valid from now. It
// refuses a scope that no token can have, and a TTL below a second, the
// resolution of a token's times.
func (k *KeyStore) Mint(grant Grant, now time.Time) (string, error) {
	if grant.TTL < time.Second {
		return "", errors.New("ttl must be at least 1s")
	}
	for _, scope := range grant.Scopes {
		if !slices.Contains(knownScopes, scope) {
			return "", fmt.Errorf("unknown scope %q, known are %q", scope, knownScopes)
		}
	}
	token, err := k.claims(grant, now).Build()
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	signed, err := jwt.Sign(token, jwt.WithKey(jwa.ES256(), k.private))
	if err != nil {
		return "", fmt.Errorf("mint token: %w", err)
	}
	return string(signed), nil
}
