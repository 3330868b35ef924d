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
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
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

// memory says how many bytes new answers may use. redismemory.Watch implements it.
type memory interface {
	// Reserve reserves up to n bytes of a server, and returns the reserved bytes and those that were free.
	Reserve(ctx context.Context, shard string, n int64) (reserved, free int64, release func(bytes int64))
}

// Store keeps the answers in Redis. It is safe for concurrent use, also by
// several replicas.
type Store struct {
	client  redis.UniversalClient
	keyring *seal.Keyring
	memory  memory
	later   *later
}

// New returns a Store. The keyring seals the answers that contain a secret. Without a keyring, Finish
// refuses these answers. Without a memory, all answers are kept. End it with Close.
func New(client redis.UniversalClient, keyring *seal.Keyring, m memory) *Store {
	return &Store{client: client, keyring: keyring, memory: m, later: newLater()}
}

// Close ends the attempts to store answers and to free keys that Redis did not store or free in time. It
// waits for those that are under way, for at most 1.5 s. Call it after the last request.
func (s *Store) Close() { s.later.close() }

var (
	//go:embed lua/replace.lua
	replaceLua string
	//go:embed lua/finish.lua
	finishLua string

	replaceScript = redis.NewScript(replaceLua)
	finishScript  = redis.NewScript(finishLua)
)

// Request is what a key stands for. Keys of different companies and scopes are independent.
type Request struct {
	Company     uuid.UUID // uuid.Nil for none
	Scope, Key  string    // the client, and the key that it chose
	Fingerprint [32]byte  // of method, path and body
}

// Claim is the right to carry out a request. It ends with Finish or Abort, or after a minute.
type Claim struct {
	store   *Store
	company uuid.UUID
	place   string
	value   string
}

// A stored value is the fingerprint, the nonce of the claim and, when the request was answered, the response.
const (
	nonceSize  = 16
	headerSize = sha256.Size + nonceSize
)

// Begin claims the key for a request. It returns the saved response instead when the request was
// answered before, ErrInProgress while it runs elsewhere, and ErrReused when the fingerprint differs.
// The client may repeat the command after a lost reply: the nonce tells it that the claim is its own.
func (s *Store) Begin(ctx context.Context, r Request) (*Claim, *Response, error) {
	nonce := uuid.New()
	c := &Claim{store: s, company: r.Company, place: keyOf(r), value: string(r.Fingerprint[:]) + string(nonce[:])}
	known, err := s.client.SetArgs(ctx, c.place, c.value, redis.SetArgs{Mode: "NX", Get: true, TTL: claimTTL}).Result()
	if errors.Is(err, redis.Nil) || err == nil && known == c.value {
		return c, nil, nil
	}
	if err != nil {
		if _, refused := errors.AsType[redis.Error](err); !refused { // Redis may have written the claim, and nobody would end it
			s.later.add(c.abort) //nolint:contextcheck // it outlives the request
		}
		return nil, nil, fmt.Errorf("claim the idempotency key: %w", err)
	}
	text, same := strings.CutPrefix(known, string(r.Fingerprint[:]))
	switch {
	case !same:
		return nil, nil, ErrReused
	case len(text) <= nonceSize:
		return nil, nil, ErrInProgress
	}
	saved, err := s.decode(c.place, text[nonceSize:])
	if err != nil {
		return nil, nil, fmt.Errorf("read the saved response: %w", err)
	}
	return nil, saved, nil
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

// Finish saves the answer of the request. The first answer stays. When the company holds its share of
// Redis's memory, or Redis is above its high-water mark, the answer is not saved and the key is free:
// a repeated request is carried out again. After an error of Redis the Store tries again for a minute, in the
// background; meanwhile a repeated request gets ErrInProgress.
func (c *Claim) Finish(ctx context.Context, r Response) error {
	text, err := c.store.encode(c.place, r)
	if err != nil {
		return fmt.Errorf("write the response: %w", err)
	}
	a := &answer{Claim: c, value: c.value + text}
	return c.store.later.unless(ctx, a.save)
}

// answer is an answer to be saved.
type answer struct {
	*Claim

	value   string
	free    int64       // bytes that were free on the server
	release func(int64) // nil: no memory is reserved
}

// save may be called again after an error.
func (a *answer) save(ctx context.Context) error {
	s, size := a.store, int64(len(a.value))
	if a.release == nil { // once: Redis may have kept the answer although a try failed
		if reserved, err := a.reserve(ctx, size); err != nil {
			return fmt.Errorf("save the response: %w", err)
		} else if !reserved {
			return a.abort(ctx)
		}
	}
	kept, err := finishScript.Run(ctx, s.client, []string{a.place, partition.Key(a.company, "c:"+a.company.String()), bytesKey(a.company)},
		a.Claim.value, a.value, answerTTL.Milliseconds(), a.free).Bool()
	switch {
	case err != nil:
		return fmt.Errorf("save the response: %w", err)
	case !kept:
		a.release(size)
	}
	return nil
}

// reserve reports whether the server has the memory.
func (a *answer) reserve(ctx context.Context, size int64) (bool, error) {
	if a.store.memory == nil {
		a.free, a.release = math.MaxInt64, func(int64) {}
		return true, nil
	}
	shard, err := partition.ShardOf(ctx, a.store.client, a.place)
	if err != nil {
		return false, err
	}
	reserved, free, release := a.store.memory.Reserve(ctx, shard, size)
	if reserved < size {
		release(reserved)
		return false, nil
	}
	a.free, a.release = free, release
	return true, nil
}

// Abort frees the key of a request that changed nothing (a 4xx or 5xx), so that it can be sent again. After
// an error the Store tries again, as after one of Finish.
func (c *Claim) Abort(ctx context.Context) error { return c.store.later.unless(ctx, c.abort) }

func (c *Claim) abort(ctx context.Context) error {
	if _, err := c.store.replace(ctx, c.place, c.value, ""); err != nil {
		return fmt.Errorf("free the idempotency key: %w", err)
	}
	return nil
}

// replace replaces the value old of a key, and reports whether the key had this value. An empty value
// deletes the key. The expiry stays.
func (s *Store) replace(ctx context.Context, key, old, value string) (bool, error) {
	return replaceScript.Run(ctx, s.client, []string{key}, old, value).Bool()
}

// keyOf returns the Redis key. It hashes scope and key, which clients choose, and the company, since many
// share a partition.
func keyOf(r Request) string {
	sum := sha256.Sum256([]byte(r.Company.String() + r.Scope + "\x00" + r.Key))
	return partition.Key(r.Company, "idem:"+hex.EncodeToString(sum[:]))
}

// bytesKey has the bytes of a company's answers by hour.
func bytesKey(company uuid.UUID) string { return partition.Key(company, "ib:"+company.String()) }

// Reseal seals the saved answers that hold a secret under the current key; see
// reseal.Count. It reads every saved answer.
func (s *Store) Reseal(ctx context.Context, count *reseal.Count) error {
	err := redisx.Scan(ctx, s.client, "sh:{*}:idem:*", func(ctx context.Context, key string) error {
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
	n := min(len(text), headerSize)
	claim, saved := text[:n], text[n:]
	if err != nil || !seal.IsSealed(saved) {
		return err // an answer that is not sealed contains no secret
	}
	value := reseal.Text(s.keyring, saved, key)
	value.Swap = func(ctx context.Context, old, fresh string) (bool, error) {
		return s.replace(ctx, key, claim+old, claim+fresh)
	}
	return count.Reseal(ctx, s.keyring, value)
}
