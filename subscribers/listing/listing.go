// Package listing reads the subscribers of companies from Redis: lists of them, and all of a
// company with their version.
package listing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/pipeline"
	"spendhook/internal/redisx"
	"spendhook/internal/seal"
	"spendhook/subscribers"
	"spendhook/subscribers/layout"
	"spendhook/subscribers/vault"
)

// Reader reads subscribers. It is safe for concurrent use; its methods block for round trips
// to Redis.
type Reader struct {
	client redis.UniversalClient
	vault  vault.Vault
}

// New returns a Reader that opens secrets with the keyring; it does not talk to Redis yet.
func New(client redis.UniversalClient, keyring *seal.Keyring) *Reader {
	return &Reader{client: client, vault: vault.New(keyring)}
}

// loadChunk is how many companies are read in one round trip. It bounds the memory of the
// answers.
const loadChunk = 128

// Load reads all subscribers of companies, oldest first, also disabled ones, with their
// version. It calls done for each company, from several goroutines concurrently. A
// company that cannot be read, or whose shard hangs, does not affect the others. A subscriber
// or certificate that cannot be opened is Unusable; the others are not affected.
func (r *Reader) Load(ctx context.Context, companies []uuid.UUID, done func(company uuid.UUID, all []*subscribers.Subscriber, version int64, err error)) {
	var shards sync.WaitGroup
	for _, shard := range redisx.ByShard(ctx, r.client, companies, layout.CompanyKey) {
		shards.Go(func() {
			for chunk := range slices.Chunk(shard, loadChunk) {
				r.loadChunk(ctx, chunk, done)
			}
		})
	}
	shards.Wait()
}

func (r *Reader) loadChunk(ctx context.Context, companies []uuid.UUID, done func(company uuid.UUID, all []*subscribers.Subscriber, version int64, err error)) {
	for i, reply := range r.readHashes(ctx, companies) {
		hash, err := reply.Result()
		if err != nil {
			done(companies[i], nil, 0, fmt.Errorf("load subscribers: %w", err))
			continue
		}
		all, version := subscribers.DecodeAll(r.vault, companies[i], hash)
		done(companies[i], all, version, nil)
	}
}

// Version is that of a company's subscribers: it grows with every change, and is 0 for a
// company that has none.
func (r *Reader) Version(ctx context.Context, company uuid.UUID) (int64, error) {
	version, err := r.client.HGet(ctx, layout.CompanyKey(company), layout.VersionField).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("read subscriber version: %w", err)
	}
	return version, nil
}

// readHashes reads the hashes of companies in one round trip. Each command has
// its own error.
func (r *Reader) readHashes(ctx context.Context, companies []uuid.UUID) []*redis.MapStringStringCmd {
	hashes, _ := pipeline.Each(ctx, r.client, companies, func(pipe redis.Pipeliner, company uuid.UUID) *redis.MapStringStringCmd {
		return pipe.HGetAll(ctx, layout.CompanyKey(company))
	})
	return hashes
}
