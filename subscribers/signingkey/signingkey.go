// Package signingkey keeps the ed25519 key of each company, for v1a signatures.
package signingkey

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
	"spendhook/internal/secret"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/vault"
)

// ErrNotFound says that a company has never had a key, and has no subscribers.
var ErrNotFound = errors.New("the company has no signing key")

const maxCachedKeys = 4096

var (
	//go:embed lua/key.lua
	keyLua string
	//go:embed lua/reseal.lua
	resealLua string

	keyScript    = layout.NewScript(keyLua)
	resealScript = layout.NewScript(resealLua)
)

// redisKey names the string with the sealed ed25519 seed of a company.
func redisKey(company uuid.UUID) string { return partition.Key(company, "wk:"+company.String()) }

// place binds a sealed seed to its company.
func place(company uuid.UUID) string { return "company/" + company.String() + "/signing-key" }

// Store keeps signing keys in Redis. It is safe for concurrent use; its methods block for
// round trips to Redis.
type Store struct {
	client  redis.UniversalClient
	keyring *seal.Keyring
	vault   vault.Vault
	keys    *lru.Cache[uuid.UUID, ed25519.PrivateKey]
}

// New returns a Store that seals under the keyring; it does not talk to Redis yet.
func New(client redis.UniversalClient, keyring *seal.Keyring) *Store {
	keys, _ := lru.New[uuid.UUID, ed25519.PrivateKey](maxCachedKeys) // fails only for a size < 1
	return &Store{client: client, keyring: keyring, vault: vault.New(keyring), keys: keys}
}

// Key returns the company's key for v1a signatures. It is made when the
// company first needs it, is the same in every replica, and never changes:
// receivers keep its public half. vault.ErrLocked when it does not open. ErrNotFound for a
// company that has never had a key and has no subscribers.
func (s *Store) Key(ctx context.Context, company uuid.UUID) (ed25519.PrivateKey, error) {
	if cached, ok := s.keys.Get(company); ok {
		return cached, nil
	}
	fresh := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(fresh) // never fails: it ends the program instead
	sealed, err := s.vault.Seal(secret.Text(fresh), nil, place(company))
	if err != nil {
		return nil, fmt.Errorf("make signing key: %w", err)
	}
	text, err := keyScript.Run(ctx, s.client, []string{redisKey(company), layout.CompanyKey(company)}, sealed).Text()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	seed, locked := s.vault.Open(text, place(company))
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

// Reseal seals every key that is sealed under another key than the current one, and
// counts it. It may be ended at any moment and begun again: what is done stays done.
func (s *Store) Reseal(ctx context.Context, count *reseal.Count) error {
	err := redisx.Scan(ctx, s.client, "sh:{*}:wk:*", func(ctx context.Context, key string) error {
		return s.reseal(ctx, key, count)
	})
	if err != nil {
		return fmt.Errorf("reseal signing keys: %w", err)
	}
	return nil
}

func (s *Store) reseal(ctx context.Context, key string, count *reseal.Count) error {
	_, text, _ := strings.Cut(key, "}:wk:")
	company, err := uuid.Parse(text)
	if err != nil || key != redisKey(company) {
		return nil //nolint:nilerr // a key of another kind
	}
	raw, err := redisx.OrEmpty(s.client.Get(ctx, key).Result())
	if err != nil || raw == "" { // it was deleted
		return err
	}
	value := reseal.Text(s.keyring, raw, place(company))
	value.Swap = func(ctx context.Context, old, fresh string) (bool, error) {
		return resealScript.Run(ctx, s.client, []string{key}, old, fresh).Bool()
	}
	return count.Reseal(ctx, s.keyring, value)
}
