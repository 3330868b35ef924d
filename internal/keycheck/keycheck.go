// Package keycheck detects a missing encryption key when the daemon starts. For each key that
// encrypts stored secrets, Redis has a check value that is encrypted with that key.
package keycheck

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/seal"
)

// key names the hash of encryption key id to check value, sealed under that encryption key.
const key = "sh:keys"

// text is the check value. It is not secret.
const text = "spendhook"

// errMissing is wrapped by the error of Verify when a key is missing or wrong.
var errMissing = errors.New("the encryption keys cannot decrypt the secrets in Redis")

// Verify returns nil if the ring has all keys with a check value in this Redis, and stores a check value
// for the current key. When processes with different keys start on an empty Redis, one of them
// succeeds. The error names the missing key's id.
func Verify(ctx context.Context, client redis.UniversalClient, ring *seal.Keyring) error {
	fresh, err := ring.Seal([]byte(text), key)
	if err != nil {
		return err
	}
	store := func(tx *redis.Tx) error {
		stored, err := check(ctx, tx, ring)
		if err != nil || stored[ring.CurrentID()] != "" { // no needless write: a full Redis would refuse it
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.HSet(ctx, key, ring.CurrentID(), fresh).Err() })
		return err
	}
	err = client.Watch(ctx, store, key)
	for errors.Is(err, redis.TxFailedErr) { // another process has stored a check value
		err = client.Watch(ctx, store, key)
	}
	return err
}

// Check is Verify, but stores nothing.
func Check(ctx context.Context, client redis.UniversalClient, ring *seal.Keyring) error {
	_, err := check(ctx, client, ring)
	return err
}

func check(ctx context.Context, client redis.Cmdable, ring *seal.Keyring) (stored map[string]string, err error) {
	stored, err = client.HGetAll(ctx, key).Result()
	if err != nil {
		return nil, fmt.Errorf("check the encryption keys: %w", err)
	}
	for id, sealed := range stored {
		if plain, err := ring.Open(sealed, key); err != nil || string(plain) != text {
			return nil, fmt.Errorf("%w: a secret was sealed under key %s; set encryption.key to that key, or add it to encryption.old_keys (configured: %v)",
				errMissing, id, ring.IDs())
		}
	}
	return stored, nil
}

// Forget removes the check values of keys that seal no secrets any more, or that are lost. It returns
// the ids that had a check value.
func Forget(ctx context.Context, client redis.UniversalClient, ids ...string) (removed []string, err error) {
	for _, id := range ids {
		n, err := client.HDel(ctx, key, id).Result()
		if err != nil {
			return removed, fmt.Errorf("forget encryption key %s: %w", id, err)
		}
		if n > 0 {
			removed = append(removed, id)
		}
	}
	return removed, nil
}
