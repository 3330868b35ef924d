package audit

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"time"

	"spendhook/internal/cursor"
)

const listName = "audit"

// key identifies the filter. A cursor is bound to the key.
func (f Filter) key() string {
	return fmt.Sprint(f.Company, f.Actor, "\n", f.Action, "\n", f.Target, "\n", f.From, f.To)
}

// isPlace matches times in unix µs.
var isPlace = regexp.MustCompile(`^\d{1,16}$`)

const (
	defaultSize = 20
	// readBatch is the number of entries of one read, maxRead the most that one call reads.
	readBatch = 500
	maxRead   = 5000
	// latest is a time in unix ms that no entry reaches.
	latest = 8_000_000_000_000
)

// List reads entries, newest first. The log is ordered by the time of recording, so only
// entries of the period are read. A call reads at most 5,000 entries: a page of a rare actor
// may be empty and still have a Next. The error is cursor.ErrBad for a cursor of another
// list.
func (l *Log) List(ctx context.Context, f Filter) (Page, error) {
	place := ""
	if err := cursor.Decode(f.Cursor, listName, f.key(), &place); err != nil {
		return Page{}, err
	}
	if place != "" && !isPlace.MatchString(place) {
		return Page{}, cursor.ErrBad
	}
	from, to := l.span(f)
	if from > to {
		return Page{}, nil
	}
	page, size := Page{}, cmp.Or(f.Size, defaultSize)
	for range maxRead / readBatch {
		list, err := l.before(ctx, place, from, to)
		if err != nil {
			return Page{}, err
		}
		for _, z := range list {
			if len(page.Items) == size {
				page.Next = cursor.Encode(listName, f.key(), place)
				return page, nil
			}
			var e Entry
			if e, place, err = decode(z); err != nil {
				return Page{}, err
			}
			if f.matches(e) {
				page.Items = append(page.Items, e)
			}
		}
		if len(list) < readBatch {
			return page, nil
		}
	}
	page.Next = cursor.Encode(listName, f.key(), place)
	return page, nil
}

// span returns the period of a list in unix ms, without entries past their retention.
func (l *Log) span(f Filter) (from, to int64) {
	from, to = l.opts.Now().Add(-l.opts.Retention).UnixMilli(), latest
	if f.From != nil {
		from = max(from, f.From.Add(time.Millisecond-time.Nanosecond).UnixMilli())
	}
	if f.To != nil {
		to = f.To.UnixMilli()
	}
	return max(from, 0), to
}
