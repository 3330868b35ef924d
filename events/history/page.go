package history

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/timestamp"
)

//go:embed lua/page.lua
var pageSource string

var pageScript = redis.NewScript(pageSource)

// place is one entry of a company's index, and a position just after it; the
// zero place is the start. The fraction of its ms only orders those of one ms.
type place struct {
	ms float64
	id string
}

// The words of page.lua.
const (
	ascending  = "asc"
	descending = "desc"
)

// span is a range of an index of events, between two times in unix ms, both included.
type span struct {
	index     string // a key
	low, high int64
	order     string // ascending or descending
}

// span limits from and to (nil: open) to the retention.
func (r *Reader) span(index string, from, to *time.Time, order string) span {
	sp := span{index: index, low: r.now().Add(-r.retention - layout.Grace).UnixMilli(), high: timestamp.MaxMillis, order: order}
	if from != nil {
		sp.low = max(sp.low, ceilMillis(*from))
	}
	if to != nil {
		sp.high = min(sp.high, to.UnixMilli())
	}
	return sp
}

// ceilMillis is the first whole millisecond that is not before t.
func ceilMillis(t time.Time) int64 {
	return t.Add(time.Millisecond - time.Nanosecond).UnixMilli()
}

// page reads up to n places of the span after the given one; fewer than n
// means that there are no more.
func (r *Reader) page(ctx context.Context, sp span, after place, n int) ([]place, error) {
	got, err := pageScript.Run(ctx, r.client, []string{sp.index},
		sp.order, sp.low, sp.high, n, after.ms, after.id).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("%w: read index: %w", events.ErrUnavailable, err)
	}
	places := make([]place, 0, len(got)/2)
	for pair := range slices.Chunk(got, 2) {
		ms, err := strconv.ParseFloat(pair[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%w: read index: %w", events.ErrUnavailable, err)
		}
		places = append(places, place{ms: ms, id: pair[0]})
	}
	return places, nil
}

// Companies lists the companies of a partition, sorted, that accepted an event
// at low (unix ms) or later and within retention. Its error wraps events.ErrUnavailable.
func Companies(ctx context.Context, client redis.UniversalClient, partition int, low int64) ([]uuid.UUID, error) {
	names, err := client.ZRangeByScore(ctx, companiesKey(partition), &redis.ZRangeBy{
		Min: strconv.FormatInt(low, 10), Max: "+inf",
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("%w: read companies: %w", events.ErrUnavailable, err)
	}
	slices.Sort(names)
	found := make([]uuid.UUID, 0, len(names))
	for _, name := range names {
		if company, err := uuid.Parse(name); err == nil { // ours are always well formed
			found = append(found, company)
		}
	}
	return found, nil
}
