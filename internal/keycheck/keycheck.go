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

// key names the hash of key id to a value sealed under that key.
const key = "sh:keys"

// text is what is sealed; it is no secret.
const text = "spendhook"

// errMissing is wrapped by the error of Verify when a key is missing or wrong.
var errMissing = errors.New("the encryption keys do not open what Redis keeps")

// Verify returns nil when the ring has all keys that are noted in this Redis, and notes its
// current key there. When processes with different keys start on an empty Redis, one of them
// succeeds. The error names the missing key's id.
func Verify(ctx context.Context, client redis.UniversalClient, ring *seal.Keyring) error {
	fresh, err := ring.Seal([]byte(text), key)
	if err != nil {
		return err
	}
	note := func(tx *redis.Tx) error {
		noted, err := check(ctx, tx, ring)
		if err != nil || noted[ring.CurrentID()] != "" { // a full Redis refuses every write
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.HSet(ctx, key, ring.CurrentID(), fresh).Err() })
		return err
	}
	err = client.Watch(ctx, note, key)
	for errors.Is(err, redis.TxFailedErr) { // another process has noted its key
		err = client.Watch(ctx, note, key)
	}
	return err
}

// Check is Verify without noting the current key.
func Check(ctx context.Context, client redis.UniversalClient, ring *seal.Keyring) error {
	_, err := check(ctx, client, ring)
	return err
}

func check(ctx context.Context, client redis.Cmdable, ring *seal.Keyring) (noted map[string]string, err error) {
	noted, err = client.HGetAll(ctx, key).Result()
	if err != nil {
		return nil, fmt.Errorf("check the encryption keys: %w", err)
	}
	for id, sealed := range noted {
		if plain, err := ring.Open(sealed, key); err != nil || string(plain) != text {
			return nil, fmt.Errorf("%w: a secret was sealed under key %s; set encryption.key to that key, or add it to encryption.old_keys (configured: %v)",
				errMissing, id, ring.IDs())
		}
	}
	return noted, nil
}

// Forget removes the notes of keys, once nothing is sealed under them any more, or they are lost.
// It returns those that were noted.
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
