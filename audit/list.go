package audit

import (
	"context"
	"fmt"
	"math"
	"time"

	"spendhook/internal/cursor"
)

const listName = "audit"

// key tells filters apart.
func (f Filter) key() string {
	return fmt.Sprint(f.Company, f.Actor, "\n", f.Action, "\n", f.Target, "\n", f.From, f.To)
}

const (
	defaultSize = 20
	maxSize     = 1000
	// readBatch is read at a time, and maxRead by one call.
	readBatch = 500
	maxRead   = 5000
)

// List reads entries, newest first. What the stream is ordered by is when they
// were recorded, so a narrow time costs only what is in it. A call looks at no
// more than 5,000 entries, so that a rare actor costs more calls, not a longer
// one. cursor.ErrBad when the cursor is not of this list.
func (l *Log) List(ctx context.Context, f Filter) (Page, error) {
	place := ""
	if err := cursor.Decode(f.Cursor, listName, f.key(), &place); err != nil {
		return Page{}, err
	}
	if place != "" && !isPlace(place) {
		return Page{}, cursor.ErrBad
	}
	from, to := l.span(f)
	if from > to {
		return Page{}, nil
	}
	page, size := Page{}, pageSize(f.Size)
	n := readBatch
	if f.takesAll() {
		n = size + 1 // one more tells whether the list goes on
	}
	for read := 0; read < maxRead; read += n {
		list, err := l.opts.Store.before(ctx, place, from, to, n)
		if err != nil {
			return Page{}, err
		}
		for _, e := range list {
			if len(page.Items) == size {
				page.Next = cursor.Encode(listName, f.key(), place)
				return page, nil
			}
			if place = e.id; f.matches(e.Entry) {
				page.Items = append(page.Items, e.Entry)
			}
		}
		if len(list) < n {
			return page, nil
		}
	}
	page.Next = cursor.Encode(listName, f.key(), place)
	return page, nil
}

// span is what is listed, in unix ms: nothing that is past its retention.
func (l *Log) span(f Filter) (from, to int64) {
	from, to = l.opts.Now().Add(-l.opts.Retention).UnixMilli(), math.MaxInt64
	if f.From != nil {
		from = max(from, f.From.Add(time.Millisecond-time.Nanosecond).UnixMilli())
	}
	if f.To != nil {
		to = f.To.UnixMilli()
	}
	return max(from, 0), to
}

func pageSize(asked int) int {
	if asked <= 0 {
		return defaultSize
	}
	return min(asked, maxSize)
}
