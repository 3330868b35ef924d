package subscribers

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"spendhook/internal/secret"
	"spendhook/subscribers/layout"
)

// SigningKey is the stored ed25519 key of a company for v1a signatures. It is generated with the
// company's first subscriber. Receivers keep the public key, so it never changes.
type SigningKey struct {
	Seed   secret.Text
	Locked error // why the Seed cannot be decrypted; else nil
}

// Open computes the private key. The error is ErrLocked when the Seed cannot be decrypted.
func (k SigningKey) Open() (ed25519.PrivateKey, error) {
	if k.Locked == nil && len(k.Seed) != ed25519.SeedSize {
		k.Locked = errors.New("the stored key is damaged")
	}
	if k.Locked != nil {
		return nil, fmt.Errorf("signing key: %w: %w", ErrLocked, k.Locked)
	}
	return ed25519.NewKeyFromSeed([]byte(k.Seed)), nil
}

// signingKeyPlace binds a sealed seed to its company.
func signingKeyPlace(company uuid.UUID) string {
	return "company/" + company.String() + "/signing-key"
}

// newSigningKey returns a sealed seed.
func (c codec) newSigningKey(company uuid.UUID) (sealed string, err error) {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails: it ends the program instead
	err = c.seal(&sealed, nil, secret.Text(seed), signingKeyPlace(company))
	return sealed, err
}

func (c codec) signingKey(company uuid.UUID, sealed string) (k SigningKey) {
	k.Seed, k.Locked = c.open(&sealed, signingKeyPlace(company))
	return k
}

// SigningKey returns the key of a company, or ErrNoSigningKey.
func (s *Store) SigningKey(ctx context.Context, company uuid.UUID) (SigningKey, error) {
	sealed, err := s.field(ctx, layout.CompanyKey(company), layout.SigningKeyField)
	if errors.Is(err, ErrNotFound) {
		err = ErrNoSigningKey
	}
	if err != nil {
		return SigningKey{}, err
	}
	return s.codec.signingKey(company, sealed), nil
}
