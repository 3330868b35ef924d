package idempotency

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
)

//go:embed lua/reseal.lua
var resealLua string

var resealScript = redis.NewScript(resealLua)

// Reseal seals the saved answers that hold a secret under the current key; see
// reseal.Count. It reads every saved answer.
func (s *Store) Reseal(ctx context.Context, count *reseal.Count) error {
	err := redisx.Scan(ctx, s.client, keyPrefix+"*", func(ctx context.Context, key string) error { return s.reseal(ctx, key, count) })
	if err != nil {
		return fmt.Errorf("reseal saved responses: %w", err)
	}
	return nil
}

func (s *Store) reseal(ctx context.Context, key string, count *reseal.Count) error {
	saved, err := s.saved(ctx, key)
	if err != nil || !seal.IsSealed(saved) {
		return err // others hold no secret
	}
	return count.Each(ctx, s.keyring, reseal.Stored{
		Value: saved,
		Seals: func(saved string) ([]string, error) { return []string{saved}, nil },
		Anew: func(saved string) (string, error) {
			plain, err := s.keyring.Open(saved, key)
			if err != nil {
				return saved, nil //nolint:nilerr // it stays, and is counted as left
			}
			return s.keyring.Seal(plain, key)
		},
		Swap: func(ctx context.Context, old, fresh string) (bool, error) {
			return resealScript.Run(ctx, s.client, []string{key}, old, fresh).Bool()
		},
		Read: func(ctx context.Context) (string, error) { return s.saved(ctx, key) },
	})
}

// saved is "" when there is none.
func (s *Store) saved(ctx context.Context, key string) (string, error) {
	text, err := s.client.HGet(ctx, key, "r").Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return text, err
}
