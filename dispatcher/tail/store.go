package tail

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/partition"
)

// docs/redis.md lists type, writer and time to live of each key.
const watchedKey = "sh:{tail}:watched"

// streamKey: stream of the attempts shown of a company, or of all.
func streamKey(of uuid.UUID) string {
	if of == uuid.Nil {
		return "sh:{tail}:all"
	}
	return partition.Key(of, "tail:"+of.String())
}

const (
	// streamLength bounds a stream, in batches of at most maxWritten entries.
	streamLength = 100
	// redisPatience bounds each call of Redis, so that viewers do not wait for long.
	redisPatience = 2 * time.Second
)

// now is Redis's clock: replicas need not agree on the time.
func (t *Tail) now(ctx context.Context) (int64, error) {
	at, err := t.client.Time(ctx).Result()
	return at.UnixMilli(), err
}

func (t *Tail) readWatched(ctx context.Context) (map[uuid.UUID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	names, err := t.client.ZRangeWithScores(ctx, watchedKey, 0, -1).Result()
	if err != nil || len(names) == 0 {
		return nil, err
	}
	now, err := t.now(ctx)
	if err != nil {
		return nil, err
	}
	watched := make(map[uuid.UUID]bool, len(names))
	for _, z := range names {
		if id, err := uuid.Parse(z.Member.(string)); err == nil && int64(z.Score) > now {
			watched[id] = true
		}
	}
	return watched, nil
}

// announce publishes this replica's viewers; after a failure the next call comes soon.
func (t *Tail) announce(ctx context.Context, of uuid.UUID) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	now, err := t.now(ctx)
	if err != nil {
		return
	}
	pipe := t.client.Pipeline()
	pipe.ZAdd(ctx, watchedKey, redis.Z{Score: float64(now + watchLife.Milliseconds()), Member: of.String()})
	pipe.ZRemRangeByScore(ctx, watchedKey, "-inf", strconv.FormatInt(now, 10))
	pipe.Expire(ctx, watchedKey, time.Minute)
	_, _ = pipe.Exec(ctx)
}

func (t *Tail) append(ctx context.Context, all map[uuid.UUID]*batch) error {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	pipe := t.client.Pipeline()
	for of, b := range all {
		text, err := json.Marshal(b)
		if err != nil {
			return fmt.Errorf("encode live tail: %w", err)
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: streamKey(of), MaxLen: streamLength, Values: []any{"b", text}})
		pipe.Expire(ctx, streamKey(of), time.Minute)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("write live tail: %w", err)
	}
	return nil
}

// readAfter reads what was written after an id, and the id to go on from; "" begins at
// the end.
func (t *Tail) readAfter(ctx context.Context, of uuid.UUID, last string) (batches []batch, at string, err error) {
	ctx, cancel := context.WithTimeout(ctx, redisPatience)
	defer cancel()
	if last == "" {
		newest, err := t.client.XRevRangeN(ctx, streamKey(of), "+", "-", 1).Result()
		if err != nil {
			return nil, "", fmt.Errorf("read live tail: %w", err)
		}
		if len(newest) == 0 {
			return nil, "0-0", nil
		}
		return nil, newest[0].ID, nil
	}
	messages, err := t.client.XRangeN(ctx, streamKey(of), "("+last, "+", streamLength).Result()
	if err != nil {
		return nil, last, fmt.Errorf("read live tail: %w", err)
	}
	for _, m := range messages {
		last = m.ID
		var b batch
		if text, ok := m.Values["b"].(string); ok && json.Unmarshal([]byte(text), &b) == nil {
			batches = append(batches, b)
		}
	}
	return batches, last, nil
}
