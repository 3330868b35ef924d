// Package history reads accepted events: one, a page of a list, all between two times.
package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/pipeline"
)

// Options are what a Reader needs.
type Options struct {
	Client    redis.UniversalClient
	Retention time.Duration    // how long ids are kept; positive
	Now       func() time.Time // nil: the real clock
}

// Reader reads accepted events. It is safe for concurrent use; every error of Redis is
// returned wrapping events.ErrUnavailable.
type Reader struct {
	client    redis.UniversalClient
	retention time.Duration
	now       func() time.Time
}

// New returns a Reader on the client, which it does not close.
func New(o Options) *Reader {
	if o.Now == nil {
		o.Now = time.Now //nolint:forbidigo // the nil default
	}
	return &Reader{client: o.Client, retention: o.Retention, now: o.Now}
}

// Get reads one event, or returns events.ErrNotFound. A damaged event gives another error.
func (r *Reader) Get(ctx context.Context, ref events.Ref) (events.Stored, error) {
	raw, err := r.client.Get(ctx, layout.EventKey(ref)).Result()
	if errors.Is(err, redis.Nil) {
		return events.Stored{}, events.ErrNotFound
	}
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") { // a key of another type is a damaged event
		return events.Stored{}, fmt.Errorf("%w: read event: %w", events.ErrUnavailable, err)
	}
	stored, err := layout.Parse(ref, raw)
	if err != nil {
		return events.Stored{}, err
	}
	return *stored, nil
}

// sizes are the stored bytes of each event; 0 for an event that does not exist or is damaged.
func (r *Reader) sizes(ctx context.Context, refs []events.Ref) ([]int, error) {
	lengths, _ := pipeline.Each(ctx, r.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.IntCmd {
		return pipe.StrLen(ctx, layout.EventKey(ref))
	}) // each command has its own error
	sizes := make([]int, len(refs))
	for i, length := range lengths {
		n, err := length.Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("%w: measure events: %w", events.ErrUnavailable, err)
		}
		sizes[i] = int(n)
	}
	return sizes, nil
}

// GetMany reads events in the order of refs, some hundred at most. Missing and damaged events
// are nil, so that one damaged event does not fail a list.
func (r *Reader) GetMany(ctx context.Context, refs []events.Ref) ([]*events.Stored, error) {
	gets, _ := pipeline.Each(ctx, r.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.StringCmd {
		return pipe.Get(ctx, layout.EventKey(ref))
	}) // each command has its own error
	found := make([]*events.Stored, len(refs))
	for i, get := range gets {
		raw, err := get.Result()
		if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE") {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%w: read events: %w", events.ErrUnavailable, err)
		}
		if found[i], err = layout.Parse(refs[i], raw); err != nil {
			found[i] = nil
		}
	}
	return found, nil
}

// Heads reads the heads of events, in the order of refs: state, time of acceptance, sequence,
// id, company and type. Missing and damaged events are nil; a compacted event has no type.
func (r *Reader) Heads(ctx context.Context, refs []events.Ref) ([]*events.Stored, error) {
	gets, _ := pipeline.Each(ctx, r.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.StringCmd {
		return pipe.GetRange(ctx, layout.EventKey(ref), 0, int64(layout.HeadLength)-1)
	}) // each command has its own error
	found := make([]*events.Stored, len(refs))
	for i, get := range gets {
		raw, err := get.Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, fmt.Errorf("%w: read heads of events: %w", events.ErrUnavailable, err)
		}
		if head, err := layout.ParseHead(refs[i], raw); err == nil && (head.Type != "" || head.State == events.Compacted) {
			found[i] = head
		}
	}
	return found, nil
}

// Pending counts the events of a company that are not settled.
func (r *Reader) Pending(ctx context.Context, company uuid.UUID) (int64, error) {
	n, err := r.client.HGet(ctx, layout.StateKey(company), "pending").Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: count pending events: %w", events.ErrUnavailable, err)
	}
	return n, nil
}
