package reimbursements

import (
	"context"
	"fmt"
	"sort"

	"github.com/uptrace/bun"
)

const (
	// maxHistograms bounds the cached histograms of filters. A histogram takes 16 bytes for each
	// day that has rows: 12 kB for two years, 160 kB for thirty.
	maxHistograms = 256
	// maxSkipped bounds the rows of a day that a page skips; beyond it the page seeks by uuid.
	maxSkipped = 4096
)

// histogram counts the reimbursements that pass one filter, by recency or, within one day, by the first
// byte of their uuid. It gives the exact total and the start of any page. So the last page costs as
// much as the first one: both begin with a seek. A histogram is exact for one revision of the data. The
// revision is read in the same snapshot as the page.
type histogram struct {
	rev     int64
	buckets []bucket
}

// bucket is one value of the counted column.
type bucket struct {
	at  int   // the value
	end int64 // the number of rows up to and including this value
}

func (h histogram) total() int64 {
	if len(h.buckets) == 0 {
		return 0
	}
	return h.buckets[len(h.buckets)-1].end
}

// find returns the bucket of the row at the offset, and the number of rows of the bucket that
// come before that row.
func (h histogram) find(offset int64) (bucket, int64) {
	i := sort.Search(len(h.buckets), func(i int) bool { return h.buckets[i].end > offset })
	if i == 0 {
		return h.buckets[0], offset
	}
	return h.buckets[i], offset - h.buckets[i-1].end
}

// ordinal is a counted value: a number, or one byte.
type ordinal int

// Scan reads a value of the database.
func (o *ordinal) Scan(src any) error {
	switch v := src.(type) {
	case int64:
		*o = ordinal(v)
	case []byte:
		*o = ordinal(v[0])
	default:
		return fmt.Errorf("read a counted value: want an integer or bytes, got %T", src)
	}
	return nil
}

// count returns the histogram of the rows of q by the expression, from the cache or by a query.
func (s *Store) count(ctx context.Context, rev int64, q *bun.SelectQuery, by string) (histogram, error) {
	q = q.ColumnExpr("? AS at, count(*) AS n", bun.Safe(by)).GroupExpr("?", bun.Safe(by)).OrderExpr("1")
	name := q.String()
	if h, ok := s.histograms.Get(name); ok && h.rev == rev {
		return h, nil
	}
	h, err := countRows(ctx, q, rev)
	if err == nil {
		s.histograms.Add(name, h)
	}
	return h, err
}

func countRows(ctx context.Context, q *bun.SelectQuery, rev int64) (histogram, error) {
	var rows []struct {
		At ordinal `bun:"at"`
		N  int64   `bun:"n"`
	}
	if err := q.Scan(ctx, &rows); err != nil {
		return histogram{}, err
	}
	h := histogram{rev: rev, buckets: make([]bucket, len(rows))}
	var end int64
	for i, r := range rows {
		end += r.N
		h.buckets[i] = bucket{at: int(r.At), end: end}
	}
	return h, nil
}
