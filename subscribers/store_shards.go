package subscribers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/redisx"
	"spendhook/subscribers/layout"
)

// loadChunk is how many companies are read in one round trip. It bounds what the
// answers hold in memory at a time.
const loadChunk = 128

// Load reads all subscribers of companies, oldest first, also disabled ones, with the
// version that they have. It calls done for each company, from several goroutines at a
// time; a company that cannot be read, or whose shard hangs, fails alone. A subscriber or
// certificate that cannot be opened is Unusable, alone too.
func (s *Store) Load(ctx context.Context, companies []uuid.UUID, done func(company uuid.UUID, all []*Subscriber, version int64, err error)) {
	var shards sync.WaitGroup
	for _, shard := range redisx.ByShard(ctx, s.opts.Client, companies, layout.CompanyKey) {
		shards.Go(func() {
			for chunk := range slices.Chunk(shard, loadChunk) {
				s.loadChunk(ctx, chunk, done)
			}
		})
	}
	shards.Wait()
}

func (s *Store) loadChunk(ctx context.Context, companies []uuid.UUID, done func(company uuid.UUID, all []*Subscriber, version int64, err error)) {
	for i, reply := range s.readHashes(ctx, companies) {
		hash, err := reply.Result()
		if err != nil {
			done(companies[i], nil, 0, fmt.Errorf("load subscribers: %w", err))
			continue
		}
		all, version := s.codec.decodeAll(companies[i], hash)
		done(companies[i], all, version, nil)
	}
}

// Version is that of a company's subscribers: it grows with every change, and is 0 for a
// company that has none.
func (s *Store) Version(ctx context.Context, company uuid.UUID) (int64, error) {
	version, err := s.opts.Client.HGet(ctx, layout.CompanyKey(company), layout.VersionField).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("read subscriber version: %w", err)
	}
	return version, nil
}

// readHashes reads the hashes of companies in one round trip. Each command has
// its own error.
func (s *Store) readHashes(ctx context.Context, companies []uuid.UUID) []*redis.MapStringStringCmd {
	pipe := s.opts.Client.Pipeline()
	hashes := make([]*redis.MapStringStringCmd, len(companies))
	for i, company := range companies {
		hashes[i] = pipe.HGetAll(ctx, layout.CompanyKey(company))
	}
	_, _ = pipe.Exec(ctx) // the commands have it
	return hashes
}
