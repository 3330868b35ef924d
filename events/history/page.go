package history

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/timestamp"
)

//go:embed lua/page.lua
var pageSource string

var pageScript = redis.NewScript(pageSource)

// Place is one entry of an index, and a position just after it; the zero Place is the start.
// The fraction of its ms only orders those of one ms.
type Place struct {
	MS    float64
	ID    string
	Again bool // the position just before it
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

// ceilMillis is the first whole millisecond that is not before t.
func ceilMillis(t time.Time) int64 {
	return t.Add(time.Millisecond - time.Nanosecond).UnixMilli()
}

// ReadIndex reads up to n places of the span after the given one; fewer than n
// means that there are no more. Its error wraps events.ErrUnavailable.
func ReadIndex(ctx context.Context, client redis.UniversalClient, sp Span, after Place, n int) ([]Place, error) {
	got, err := pageScript.Run(ctx, client, []string{sp.Index},
		sp.Ascending, sp.Low, sp.High, n, after.MS, after.ID, after.Again).StringSlice()
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

// Companies goes through the companies that accepted an event at low (unix ms) or later and
// within retention, by partition and then by UUID, from one of them on; uuid.Nil: all. It ends
// with the first error, which wraps events.ErrUnavailable.
func Companies(ctx context.Context, client redis.UniversalClient, from uuid.UUID, low int64) iter.Seq2[uuid.UUID, error] {
	return func(yield func(uuid.UUID, error) bool) {
		first := 0
		if from != uuid.Nil {
			first = partition.Of(from)
		}
		for p := first; p < partition.Count; p++ {
			names, err := client.ZRangeByScore(ctx, companiesKey(p), &redis.ZRangeBy{
				Min: strconv.FormatInt(low, 10), Max: "+inf",
			}).Result()
			if err != nil {
				yield(uuid.Nil, fmt.Errorf("%w: read companies: %w", events.ErrUnavailable, err))
				return
			}
			slices.Sort(names) // the set is in the order of time, which changes between pages
			for _, name := range names {
				company, err := uuid.Parse(name)
				if err != nil || p == first && bytes.Compare(company[:], from[:]) < 0 { // ours are always well formed
					continue
				}
				if !yield(company, nil) {
					return
				}
			}
		}
	}
}
