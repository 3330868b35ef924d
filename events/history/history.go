// Package history reads accepted events: one event, a page of a list, or all events of a time span.
package history

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/clock"
	"spendhook/internal/partition"
	"spendhook/internal/pipeline"
	"spendhook/internal/timestamp"
)

// Options are what a Reader needs.
type Options struct {
	Client    redis.UniversalClient
	Retention time.Duration    // how long ids are kept; positive
	Now       func() time.Time // nil: the real clock
}

// Reader reads accepted events. It is safe for concurrent use. Errors of Redis wrap
// events.ErrUnavailable.
type Reader struct {
	client    redis.UniversalClient
	retention time.Duration
	now       func() time.Time
}

// New returns a Reader on the client, which it does not close.
func New(o Options) *Reader {
	o.Now = clock.Or(o.Now)
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
	lengths, err := pipeline.Readable(ctx, r.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.IntCmd {
		return pipe.StrLen(ctx, layout.EventKey(ref))
	})
	if err != nil {
		return nil, fmt.Errorf("%w: measure events: %w", events.ErrUnavailable, err)
	}
	sizes := make([]int, len(refs))
	for i, length := range lengths {
		sizes[i] = int(length.Val())
	}
	return sizes, nil
}

// GetMany reads events in the order of refs, some hundred at most. Missing and damaged events
// are nil, so that one damaged event does not fail a list.
func (r *Reader) GetMany(ctx context.Context, refs []events.Ref) ([]*events.Stored, error) {
	return r.read(ctx, refs, -1, layout.Parse)
}

// read parses the values of events, up to the byte last (-1: all bytes). Missing and damaged events
// are nil.
func (r *Reader) read(ctx context.Context, refs []events.Ref, last int64, parse func(events.Ref, string) (*events.Stored, error)) ([]*events.Stored, error) {
	values, err := pipeline.Readable(ctx, r.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.StringCmd {
		return pipe.GetRange(ctx, layout.EventKey(ref), 0, last)
	})
	if err != nil {
		return nil, fmt.Errorf("%w: read events: %w", events.ErrUnavailable, err)
	}
	found := make([]*events.Stored, len(refs))
	for i, value := range values {
		if stored, err := parse(refs[i], value.Val()); err == nil {
			found[i] = stored
		}
	}
	return found, nil
}

// GetSome reads those of the events for which on is true, as GetMany does; the others are nil.
func (r *Reader) GetSome(ctx context.Context, refs []events.Ref, on []bool) ([]*events.Stored, error) {
	var wanted []events.Ref
	for i, ref := range refs {
		if on[i] {
			wanted = append(wanted, ref)
		}
	}
	found, err := r.GetMany(ctx, wanted)
	if err != nil {
		return nil, err
	}
	stored := make([]*events.Stored, len(refs))
	for i := range refs {
		if on[i] {
			stored[i], found = found[0], found[1:]
		}
	}
	return stored, nil
}

// heads reads the heads of events, in the order of refs: state, time of acceptance, sequence,
// id, company and type. Missing and damaged events are nil; a compacted event has no type.
func (r *Reader) heads(ctx context.Context, refs []events.Ref) ([]*events.Stored, error) {
	heads, err := r.read(ctx, refs, int64(layout.HeadLength)-1, layout.ParseHead)
	for i, head := range heads {
		if head != nil && head.Type == "" && head.State != events.Compacted {
			heads[i] = nil
		}
	}
	return heads, err
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

//go:embed lua/page.lua
var pageSource string

var pageScript = redis.NewScript(pageSource)

// Place is an entry of an index, or the position after the entry (with Inclusive: before it). The
// zero Place is the start of the index.
type Place struct {
	MS        float64 `json:"t,omitzero"` // the fraction only orders the entries of one millisecond
	ID        string  `json:"i,omitzero"`
	Inclusive bool    `json:"-"`
}

// Span is a range of an index, between two times in unix ms, both included.
type Span struct {
	Index     string // a key
	Low, High int64
	Ascending bool
}

// span limits from and to (nil: open) to the retention.
func (r *Reader) span(index string, from, to *time.Time) Span {
	sp := Span{Index: index, Low: r.now().Add(-r.retention - layout.Grace).UnixMilli(), High: timestamp.MaxMillis}
	if from != nil {
		sp.Low = max(sp.Low, ceilMillis(*from))
	}
	if to != nil {
		sp.High = min(sp.High, to.UnixMilli())
	}
	return sp
}

func ceilMillis(t time.Time) int64 {
	return t.Add(time.Millisecond - time.Nanosecond).UnixMilli()
}

// ReadIndex reads up to n places of the span after the given one; fewer than n
// means that there are no more. Its error wraps events.ErrUnavailable.
func ReadIndex(ctx context.Context, client redis.UniversalClient, sp Span, after Place, n int) ([]Place, error) {
	got, err := pageScript.Run(ctx, client, []string{sp.Index},
		sp.Ascending, sp.Low, sp.High, n, after.MS, after.ID, after.Inclusive).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("%w: read index: %w", events.ErrUnavailable, err)
	}
	places := make([]Place, 0, len(got)/2)
	for pair := range slices.Chunk(got, 2) {
		ms, err := strconv.ParseFloat(pair[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%w: read index: %w", events.ErrUnavailable, err)
		}
		places = append(places, Place{MS: ms, ID: pair[0]})
	}
	return places, nil
}

// Companies iterates over the companies with an event accepted at low (unix ms) or later and within
// retention, by partition and then by UUID. It begins with the company from; uuid.Nil: with the
// first. It ends with the first error, which wraps events.ErrUnavailable.
func Companies(ctx context.Context, client redis.UniversalClient, from uuid.UUID, low int64) iter.Seq2[uuid.UUID, error] {
	return func(yield func(uuid.UUID, error) bool) {
		first := 0
		if from != uuid.Nil {
			first = partition.Of(from)
		}
		for p := first; p < partition.Count; p++ {
			names, err := client.ZRangeByScore(ctx, partition.Prefix(p)+"companies", &redis.ZRangeBy{
				Min: strconv.FormatInt(low, 10), Max: "+inf",
			}).Result()
			if err != nil {
				yield(uuid.Nil, fmt.Errorf("%w: read companies: %w", events.ErrUnavailable, err))
				return
			}
			slices.Sort(names) // the set is in the order of time, which changes between pages
			for _, name := range names {
				company, err := uuid.Parse(name)
				if err != nil || p == first && bytes.Compare(company[:], from[:]) < 0 { // err: no script writes such a member
					continue
				}
				if !yield(company, nil) {
					return
				}
			}
		}
	}
}
