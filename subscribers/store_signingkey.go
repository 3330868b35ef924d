package subscribers

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

const maxCachedKeys = 4096

// SigningKey returns the company's key for v1a signatures. It is made when the
// company first needs it, is the same in every replica, and never changes:
// receivers keep its public half. ErrLocked when it does not open. ErrNotFound for a company that has never had
// a key and has no subscribers.
func (s *Store) SigningKey(ctx context.Context, company uuid.UUID) (ed25519.PrivateKey, error) {
	if cached, ok := s.keys.Get(company); ok {
		return cached, nil
	}
	fresh := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(fresh) // never fails: it ends the program instead
	sealed, err := s.opts.Keyring.Seal(fresh, signingKeyPlace(company))
	if err != nil {
		return nil, fmt.Errorf("make signing key: %w", err)
	}
	text, err := signingKeyScript.Run(ctx, s.opts.Client, []string{signingKey(company), companyKey(company)}, sealed).Text()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	seed, locked := s.vault.open(text, signingKeyPlace(company))
	switch {
	case locked != nil:
		return nil, fmt.Errorf("signing key of company %s: %w", company, locked.Err())
	case len(seed) != ed25519.SeedSize:
		return nil, errors.New("stored signing key is damaged")
	}
	private := ed25519.NewKeyFromSeed([]byte(seed))
	s.keys.Add(company, private)
	return private, nil
}
