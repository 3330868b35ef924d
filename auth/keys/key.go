package keys

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"

	"spendhook/internal/seal"
	"spendhook/storage"
)

// signingKey is a decrypted key (ECDSA P-256).
type signingKey struct {
	row             Key
	private, public jwk.Key
}

// newSigningKey makes a key that signs from now.
func newSigningKey(ring *seal.Keyring, now time.Time) (*signingKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	k, err := importKey(private)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	id, _ := k.private.KeyID()
	at := storage.At(now)
	k.row = Key{ID: id, CreatedAt: at, SignsFrom: at}
	k.row.Sealed, err = ring.Seal(der, sealContext(id))
	return k, err
}

// openKey decrypts a key of the database.
func openKey(ring *seal.Keyring, row Key) (*signingKey, error) {
	der, err := ring.Open(row.Sealed, sealContext(row.ID))
	if err != nil {
		return nil, fmt.Errorf("open token key %s: %w", row.ID, err)
	}
	private, err := parseKey(der)
	if err != nil {
		return nil, fmt.Errorf("open token key %s: %w", row.ID, err)
	}
	k, err := importKey(private)
	if err != nil {
		return nil, err
	}
	k.row = row
	return k, nil
}

// sealContext binds an encrypted key to its id: with another id it cannot be decrypted.
func sealContext(id string) string { return "token key " + id }

func importKey(key *ecdsa.PrivateKey) (*signingKey, error) {
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
	return &signingKey{private: private, public: public}, nil
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("not an ECDSA P-256 key")
	}
	return key, nil
}
