package idempotency

import (
	"context"
	_ "embed"
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
	err := redisx.Scan(ctx, s.client, keyPrefix+"*", func(ctx context.Context, key string) error {
		return s.reseal(ctx, key, count)
	})
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
	value := reseal.Text(s.keyring, saved, key)
	value.Swap = func(ctx context.Context, old, fresh string) (bool, error) {
		return resealScript.Run(ctx, s.client, []string{key}, old, fresh).Bool()
	}
	value.Read = func(ctx context.Context) (string, error) { return s.saved(ctx, key) }
	return count.Each(ctx, s.keyring, value)
}

// saved is "" when there is none.
func (s *Store) saved(ctx context.Context, key string) (string, error) {
	return redisx.OrEmpty(s.client.HGet(ctx, key, "r").Result())
}
