// Package history reads accepted events: one event, a page of a list, or all events of a time span. It reads events
// that Redis has compacted or forgotten from an Archive, if there is one.
package history

import (
	"bytes"
	"cmp"
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
	Archive   Archive          // nil: there is no history
	Now       func() time.Time // nil: the real clock
}

// Reader reads accepted events. It is safe for concurrent use. Errors of Redis and of the Archive wrap
// events.ErrUnavailable.
//
// An event that Redis has is read from Redis alone, since the Archive may have an earlier state of it. One that Redis has
// compacted or forgotten is read from the Archive, as it was when it was settled.
type Reader struct {
	client    redis.UniversalClient
	archive   Archive // nil: there is no history
	retention time.Duration
	now       func() time.Time
	searches  *searches
}

// New returns a Reader on the client, which it does not close.
func New(o Options) *Reader {
	o.Now = clock.Or(o.Now)
	return &Reader{client: o.Client, archive: o.Archive, retention: o.Retention, now: o.Now, searches: &searches{of: make(map[uuid.UUID]bool)}}
}

// InRedis returns a Reader without the Archive: for callers that write to the events that they read.
func (r *Reader) InRedis() *Reader {
	kept := *r
	kept.archive = nil
	return &kept
}

// Get reads one event, or returns events.ErrNotFound. A damaged event gives another error.
func (r *Reader) Get(ctx context.Context, ref events.Ref) (events.Stored, error) {
	kept, keptErr := r.get(ctx, ref)
	if missing := errors.Is(keptErr, events.ErrNotFound); !missing && (keptErr != nil || kept.State != events.Compacted) {
		return kept, keptErr
	}
	archived, err := r.GetArchived(ctx, []events.Ref{ref})
	if err != nil {
		return events.Stored{}, err
	}
	if archived[0] == nil || keptErr == nil && !isSame(&kept, archived[0]) {
		return kept, keptErr
	}
	return *archived[0], nil
}

// get is Get without the Archive.
func (r *Reader) get(ctx context.Context, ref events.Ref) (events.Stored, error) {
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

// GetArchived reads events from the Archive alone, in the order of refs, some hundred at most; nil for those that it
// does not have, and for all of them without an Archive.
func (r *Reader) GetArchived(ctx context.Context, refs []events.Ref) ([]*events.Stored, error) {
	found := make([]*events.Stored, len(refs))
	if r.archive == nil || len(refs) == 0 {
		return found, nil
	}
	archived, err := r.archive.Get(ctx, refs)
	if err != nil {
		return nil, err
	}
	for i, ref := range refs {
		if archived[i] == nil {
			continue
		}
		if stored, err := layout.Parse(ref, archived[i].Value); err == nil && stored.State != events.Compacted {
			stored.State = events.Settled
			found[i] = stored
		}
	}
	return found, nil
}

// ArchivedBytes is what an event that is to be read from an Archive counts as for Fitting: its size is not known before.
const ArchivedBytes = readBytes / 25

// compactedBytes is the length of a compacted event: header and digest. Other values are longer.
const compactedBytes = 44

// sizes are the stored bytes of each event; 0 for an event that does not exist or is damaged. With an Archive they are at
// least ArchivedBytes for an event that does not exist or is compacted.
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
		if r.archive != nil && sizes[i] <= compactedBytes {
			sizes[i] = ArchivedBytes
		}
	}
	return sizes, nil
}

// GetMany reads events in the order of refs, some hundred at most. Missing and damaged events
// are nil, so that one damaged event does not fail a list.
func (r *Reader) GetMany(ctx context.Context, refs []events.Ref) ([]*events.Stored, error) {
	found, gone, err := r.read(ctx, refs, -1, layout.Parse)
	if err != nil {
		return nil, err
	}
	wanted := make([]events.Ref, len(gone))
	for i, at := range gone {
		wanted[i] = refs[at]
	}
	archived, err := r.GetArchived(ctx, wanted)
	if err != nil {
		return nil, err
	}
	for i, at := range gone {
		if archived[i] != nil && (found[at] == nil || isSame(found[at], archived[i])) {
			found[at] = archived[i]
		}
	}
	return found, nil
}

// isSame reports whether a compacted event is the archived one. Else that is an earlier event with the same id, which
// Redis had forgotten.
func isSame(compacted, archived *events.Stored) bool { return compacted.Sequence == archived.Sequence }

// read parses the values of events in Redis, up to the byte last (-1: all bytes). Missing and damaged events
// are nil. gone are the indexes of missing and compacted ones.
func (r *Reader) read(ctx context.Context, refs []events.Ref, last int64, parse func(events.Ref, string) (*events.Stored, error)) (found []*events.Stored, gone []int, err error) {
	values, err := pipeline.Readable(ctx, r.client, refs, func(pipe redis.Pipeliner, ref events.Ref) *redis.StringCmd {
		return pipe.GetRange(ctx, layout.EventKey(ref), 0, last)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: read events: %w", events.ErrUnavailable, err)
	}
	found = make([]*events.Stored, len(refs))
	for i, value := range values {
		stored, err := parse(refs[i], value.Val())
		if err == nil {
			found[i] = stored
		}
		if value.Err() == nil && value.Val() == "" || err == nil && stored.State == events.Compacted {
			gone = append(gone, i)
		}
	}
	return found, gone, nil
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

// heads reads the heads of events in Redis, in the order of refs: state, time of acceptance, sequence,
// id, company and type. Missing and damaged events are nil; a compacted event has no type. gone is as in read.
func (r *Reader) heads(ctx context.Context, refs []events.Ref) (heads []*events.Stored, gone []int, err error) {
	heads, gone, err = r.read(ctx, refs, int64(layout.HeadLength)-1, layout.ParseHead)
	for i, head := range heads {
		if head != nil && head.Type == "" && head.State != events.Compacted {
			heads[i] = nil
		}
	}
	return heads, gone, err
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
	Index     string // a key in Redis; an Archive goes by Company, Subscriber and Deaths
	Kept      int64  // Redis's part of the range does not begin before it: such entries are about to be removed
	Low, High int64
	Ascending bool

	Company    uuid.UUID
	Subscriber *uuid.UUID // nil: the index of all subscribers of the company
	Deaths     bool       // the index of dead letters, by the time of death
	Search     string     // as Filter.Search, for Archive.Search
}

// Oldest is the time of acceptance from which on the events in Redis are listed.
func (r *Reader) Oldest() time.Time { return r.now().Add(-r.retention - layout.Grace) }

// span is the range between from and to (nil: open).
func (r *Reader) span(index string, company uuid.UUID, from, to *time.Time) Span {
	sp := Span{Index: index, Company: company, Kept: r.Oldest().UnixMilli(), High: timestamp.MaxMillis}
	if from != nil {
		sp.Low = ceilMillis(*from)
	}
	if to != nil {
		sp.High = min(sp.High, to.UnixMilli())
	}
	return sp
}

func ceilMillis(t time.Time) int64 {
	return t.Add(time.Millisecond - time.Nanosecond).UnixMilli()
}

// ReadIndex reads up to n places of the span after the given one, by time and then by the bytes of the id; fewer than n
// means that there are no more. It merges the index in Redis with that of the archive (nil: there is none). A place that
// both have is read once. An id has two places if Redis had forgotten it before it was accepted again, or if the archive
// does not know yet that its delivery died again. Its error wraps events.ErrUnavailable.
func ReadIndex(ctx context.Context, client redis.UniversalClient, archive Archive, sp Span, after Place, n int) ([]Place, error) {
	kept, err := readKept(ctx, client, sp, after, n)
	if err != nil || archive == nil || n <= 0 {
		return kept, err
	}
	archived, err := archive.Index(ctx, sp, after, n) // after Redis: what is compacted meanwhile was archived before
	if err != nil {
		return nil, err
	}
	return merge(kept, archived, sp.compare, n), nil
}

// compare compares places by the order of the span.
func (sp *Span) compare(a, b Place) int {
	order := cmp.Or(cmp.Compare(a.MS, b.MS), cmp.Compare(a.ID, b.ID))
	if sp.Ascending {
		return order
	}
	return -order
}

// merge returns the first n elements of both lists, which are in the same order. It drops repetitions.
func merge[T any](a, b []T, compare func(a, b T) int, n int) []T {
	out := make([]T, 0, min(n, len(a)+len(b)))
	for len(out) < n && len(a)+len(b) > 0 {
		var order int
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = compare(a[0], b[0])
		}
		if order <= 0 {
			out, a = append(out, a[0]), a[1:]
		} else {
			out = append(out, b[0])
		}
		if order >= 0 {
			b = b[1:]
		}
	}
	return out
}

// readKept is ReadIndex of Redis's index alone.
func readKept(ctx context.Context, client redis.UniversalClient, sp Span, after Place, n int) ([]Place, error) {
	got, err := pageScript.Run(ctx, client, []string{sp.Index},
		sp.Ascending, max(sp.Low, sp.Kept), sp.High, n, after.MS, after.ID, after.Inclusive).StringSlice()
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

// Companies iterates over the companies with an event accepted at low (unix ms) or later that Redis has, and those of the
// archive (nil: there is none), by partition and then by UUID. It begins with the company from; uuid.Nil: with the
// first. It ends with the first error, which wraps events.ErrUnavailable.
func Companies(ctx context.Context, client redis.UniversalClient, archive Archive, from uuid.UUID, low int64) iter.Seq2[uuid.UUID, error] {
	return func(yield func(uuid.UUID, error) bool) {
		first := 0
		if from != uuid.Nil {
			first = partition.Of(from)
		}
		archived := archivedCompanies{archive: archive, after: from}
		if archive != nil && from != uuid.Nil {
			archived.read = []uuid.UUID{from} // the archive begins after it
		}
		for p := first; p < partition.Count; p++ {
			kept, err := companiesIn(ctx, client, p, low)
			if err != nil {
				yield(uuid.Nil, err)
				return
			}
			more, err := archived.next(ctx, p)
			if err != nil {
				yield(uuid.Nil, err)
				return
			}
			for _, company := range merge(kept, more, compareUUIDs, len(kept)+len(more)) {
				if p == first && compareUUIDs(company, from) < 0 {
					continue
				}
				if !yield(company, nil) {
					return
				}
			}
		}
	}
}

func compareUUIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// companiesIn returns the companies of a partition that Redis has, in the order of their UUIDs.
func companiesIn(ctx context.Context, client redis.UniversalClient, p int, low int64) ([]uuid.UUID, error) {
	names, err := client.ZRangeByScore(ctx, partition.Prefix(p)+"companies", &redis.ZRangeBy{
		Min: strconv.FormatInt(low, 10), Max: "+inf",
	}).Result()
	if err != nil {
		return nil, fmt.Errorf("%w: read companies: %w", events.ErrUnavailable, err)
	}
	companies := make([]uuid.UUID, 0, len(names))
	for _, name := range names {
		if company, err := uuid.Parse(name); err == nil { // no script writes another member
			companies = append(companies, company)
		}
	}
	slices.SortFunc(companies, compareUUIDs) // the set is in the order of time, which changes between pages
	return companies, nil
}

// companiesBatch is how many companies of an archive are read at a time.
const companiesBatch = 100

// archivedCompanies reads the companies of an archive, partition by partition.
type archivedCompanies struct {
	archive Archive
	after   uuid.UUID   // where the archive is read next
	read    []uuid.UUID // but not returned yet
	ended   bool
}

// next returns the companies of partition p that the calls for earlier partitions have not returned.
func (a *archivedCompanies) next(ctx context.Context, p int) (companies []uuid.UUID, err error) {
	for {
		for len(a.read) > 0 && partition.Of(a.read[0]) <= p {
			companies, a.read = append(companies, a.read[0]), a.read[1:]
		}
		if a.archive == nil || a.ended || len(a.read) > 0 {
			return companies, nil
		}
		if a.read, err = a.archive.Companies(ctx, a.after, companiesBatch); err != nil {
			return nil, err
		}
		if a.ended = len(a.read) < companiesBatch; len(a.read) > 0 {
			a.after = a.read[len(a.read)-1]
		}
	}
}
