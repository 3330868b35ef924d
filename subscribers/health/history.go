package health

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/queues"
)

// Change is an entry in the history of a subscriber.
type Change struct {
	At   time.Time
	What string // paused, resumed, disabled, enabled, failing or recovered
}

// History returns the latest changes of a subscriber, oldest first: at most 50. They are
// kept for 8 days after the last change.
func (s *Store) History(ctx context.Context, company, id uuid.UUID) ([]Change, error) {
	texts, err := s.opts.Client.LRange(ctx, queues.ChangesKey(company, id), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the subscriber's history: %w", err)
	}
	var all []Change
	for _, text := range slices.Backward(texts) {
		at, what, _ := strings.Cut(text, " ")
		if ms, err := strconv.ParseInt(at, 10, 64); err == nil {
			all = append(all, Change{time.UnixMilli(ms).UTC(), what})
		}
	}
	return all, nil
}

// Troubled lists the failing and the paused subscribers of a company, enabled or not, in one
// round trip.
func (s *Store) Troubled(ctx context.Context, company uuid.UUID) (failing, paused []uuid.UUID, err error) {
	since := s.opts.Now().Add(-healthLife).UnixMilli()
	pipe := s.opts.Client.Pipeline()
	failed := pipe.ZRangeByScore(ctx, failingKey(company), &redis.ZRangeBy{Min: strconv.FormatInt(since, 10), Max: "+inf"})
	managed := pipe.SMembers(ctx, queues.ManagedKey(company))
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, fmt.Errorf("read failing and paused subscribers: %w", err)
	}
	for _, text := range failed.Val() {
		if id, err := uuid.Parse(text); err == nil {
			failing = append(failing, id)
		}
	}
	for _, text := range managed.Val() {
		if name, marked := strings.CutPrefix(text, queues.PausedMark); marked {
			if id, err := uuid.Parse(name); err == nil {
				paused = append(paused, id)
			}
		}
	}
	return failing, paused, nil
}
