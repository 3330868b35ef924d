// Package idempotency makes requests idempotent: of several requests with the same Idempotency-Key
// it runs the first, and repeats the answer of the first to the others.
package idempotency

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/internal/seal/reseal"
)

var (
	// ErrReused is returned when the key came with another request before.
	ErrReused = errors.New("idempotency: the key was used for another request")
	// ErrInProgress is returned while the first request with the key runs.
	ErrInProgress = errors.New("idempotency: a request with this key is in progress")
)

// Response is the answer to repeat.
type Response struct {
	Status int         `json:"status"`
	Header http.Header `json:"header"` // only what is to be repeated
	Body   []byte      `json:"body"`
	Read   string      `json:"read,omitempty"` // path from which to read the body again, when it is too large to store
	Secret bool        `json:"-"`              // the answer contains a secret: it is stored sealed
}

// answerTTL is how long an answer is kept.
const answerTTL = 24 * time.Hour

// claimTTL is how long a request may run before its claim expires and its key is free again. It must exceed
// the server's timeouts.
const claimTTL = time.Minute

// Store keeps the answers in Redis. It is safe for concurrent use, also by
// several replicas.
type Store struct {
	client  redis.UniversalClient
	keyring *seal.Keyring
}

// New returns a Store. The keyring seals the answers that contain a secret. Without a keyring, Finish
// refuses these answers.
func New(client redis.UniversalClient, keyring *seal.Keyring) *Store {
	return &Store{client: client, keyring: keyring}
}

//go:embed lua/replace.lua
var replaceLua string

var replaceScript = redis.NewScript(replaceLua)

// Begin claims the key for a request, which then must end in Finish or Abort.
// It returns the saved response instead when the request was answered before,
// ErrInProgress while it runs elsewhere, and ErrReused when the fingerprint (of
// the method, path and body) differs. Keys of different scopes (a client, a
// company) are independent.
func (s *Store) Begin(ctx context.Context, scope, key string, fingerprint [32]byte) (*Response, error) {
	place := keyOf(scope, key)
	known, err := s.client.SetArgs(ctx, place, fingerprint[:], redis.SetArgs{Mode: "NX", Get: true, TTL: claimTTL}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil // nothing saved and nothing wrong: the caller runs the request
	}
	if err != nil {
		return nil, fmt.Errorf("claim the idempotency key: %w", err)
	}
	text, same := strings.CutPrefix(known, string(fingerprint[:]))
	switch {
	case !same:
		return nil, ErrReused
	case text == "":
		return nil, ErrInProgress
	}
	saved, err := s.decode(place, text)
	if err != nil {
		return nil, fmt.Errorf("read the saved response: %w", err)
	}
	return saved, nil
}

func (s *Store) decode(place, text string) (*Response, error) {
	plain, sealed := []byte(text), seal.IsSealed(text)
	if sealed {
		var err error
		if plain, err = s.keyring.Open(text, place); err != nil {
			return nil, err
		}
	}
	saved := &Response{Secret: sealed}
	if json.Unmarshal(plain, saved) != nil { // its error could quote the answer
		return nil, errors.New("it is damaged")
	}
	return saved, nil
}

func (s *Store) encode(place string, r Response) (string, error) {
	text, err := json.Marshal(r)
	if err != nil || !r.Secret {
		return string(text), err
	}
	return s.keyring.Seal(text, place)
}

// Finish saves the answer of a claimed request. The first answer stays.
func (s *Store) Finish(ctx context.Context, scope, key string, fingerprint [32]byte, r Response) error {
	place := keyOf(scope, key)
	text, err := s.encode(place, r)
	if err != nil {
		return fmt.Errorf("write the response: %w", err)
	}
	if _, err := s.replace(ctx, place, fingerprint[:], string(fingerprint[:])+text, answerTTL); err != nil {
		return fmt.Errorf("save the response: %w", err)
	}
	return nil
}

// Abort frees the key of a claimed request that changed nothing (a 4xx or 5xx), so that it can
// be sent again.
func (s *Store) Abort(ctx context.Context, scope, key string, fingerprint [32]byte) error {
	if _, err := s.replace(ctx, keyOf(scope, key), fingerprint[:], "", 0); err != nil {
		return fmt.Errorf("free the idempotency key: %w", err)
	}
	return nil
}

// replace replaces the value old of a key, and reports whether the key had this value. An empty value
// deletes the key. With a ttl, a key that has expired is written too; without one the expiry stays.
func (s *Store) replace(ctx context.Context, key string, old any, value string, ttl time.Duration) (bool, error) {
	return replaceScript.Run(ctx, s.client, []string{key}, old, value, ttl.Milliseconds()).Bool()
}

const keyPrefix = "sh:idem:"

// keyOf returns the Redis key. It hashes scope and key, which clients choose. The value is the
// fingerprint, and after it the saved response, if there is one.
func keyOf(scope, key string) string {
	sum := sha256.Sum256([]byte(scope + "\x00" + key))
	return keyPrefix + hex.EncodeToString(sum[:])
}

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
	text, err := s.client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	n := min(len(text), sha256.Size)
	fingerprint, saved := text[:n], text[n:]
	if err != nil || !seal.IsSealed(saved) {
		return err // an answer that is not sealed contains no secret
	}
	value := reseal.Text(s.keyring, saved, key)
	value.Swap = func(ctx context.Context, old, fresh string) (bool, error) {
		return s.replace(ctx, key, fingerprint+old, fingerprint+fresh, 0)
	}
	return count.Reseal(ctx, s.keyring, value)
}
