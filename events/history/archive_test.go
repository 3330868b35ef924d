package history_test

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"spendhook/events/history"
	"spendhook/events/layout"
	"spendhook/internal/partition"
)

// listed is an archive in memory, with one index.
type listed struct {
	history.Archive

	places    []history.Place
	companies []uuid.UUID // in order
	asked     int
}

func ascending(a, b history.Place) int {
	return cmp.Or(cmp.Compare(a.MS, b.MS), cmp.Compare(a.ID, b.ID))
}

func (l *listed) Index(_ context.Context, sp history.Span, after history.Place, n int) ([]history.Place, error) {
	return pageOf(l.places, sp, after, n), nil
}

// pageOf is a page of places, in the simplest manner.
func pageOf(places []history.Place, sp history.Span, after history.Place, n int) []history.Place {
	order := ascending
	if !sp.Ascending {
		order = func(a, b history.Place) int { return ascending(b, a) }
	}
	out := slices.DeleteFunc(slices.Clone(places), func(p history.Place) bool {
		past := after.ID != "" && (order(p, after) < 0 || order(p, after) == 0 && !after.Inclusive)
		return past || int64(p.MS) < sp.Low || int64(p.MS) > sp.High
	})
	slices.SortFunc(out, order)
	out = slices.CompactFunc(out, func(a, b history.Place) bool { return order(a, b) == 0 })
	return out[:min(n, len(out))]
}

func (l *listed) Companies(_ context.Context, after uuid.UUID, n int) ([]uuid.UUID, error) {
	l.asked++
	rest := l.companies
	if after != uuid.Nil {
		rest = slices.DeleteFunc(slices.Clone(rest), func(c uuid.UUID) bool { return companyOrder(c, after) <= 0 })
	}
	return rest[:min(n, len(rest))], nil
}

func companyOrder(a, b uuid.UUID) int {
	return cmp.Or(cmp.Compare(partition.Of(a), partition.Of(b)), bytes.Compare(a[:], b[:]))
}

// A page of two indexes is the page of their union, wherever its cursor is from. Only Redis's part has a lower bound of its
// own.
func TestReadIndexOfBoth(t *testing.T) {
	t.Parallel()
	b := setup(t)
	index := layout.IndexKey(company)
	rapid.Check(t, func(rt *rapid.T) {
		b.Redis.FlushDB(t.Context()) // this test's own database
		archive := &listed{}
		sp := history.Span{
			Index: index, Ascending: rapid.Bool().Draw(rt, "ascending"), Kept: rapid.Int64Range(100, 102).Draw(rt, "kept"),
			Low: rapid.Int64Range(99, 101).Draw(rt, "low"), High: rapid.Int64Range(101, 104).Draw(rt, "high"),
		}
		var union []history.Place
		place := rapid.Custom(func(rt *rapid.T) history.Place {
			ms := rapid.SampledFrom([]float64{99.5, 101, 101, 101, 101 + 1./1024, 104}).Draw(rt, "ms")
			return history.Place{MS: ms, ID: rapid.StringMatching("[aA_b-][aB-]?(/x)?").Draw(rt, "id")}
		})
		places := rapid.SliceOfNDistinct(place, 0, 30, func(p history.Place) string { return p.ID }).Draw(rt, "places")
		for _, p := range places {
			where := rapid.IntRange(0, 2).Draw(rt, "where")
			if where > 0 {
				archive.places = append(archive.places, p)
			}
			if where < 2 {
				b.Redis.ZAdd(t.Context(), index, redis.Z{Score: p.MS, Member: p.ID})
			}
			if where > 0 || int64(p.MS) >= sp.Kept {
				union = append(union, p)
			}
		}
		after := history.Place{}
		if rapid.Bool().Draw(rt, "begun") {
			after = rapid.OneOf(place, rapid.SampledFrom(append(places, history.Place{MS: 101, ID: "b"}))).Draw(rt, "after")
			after.Inclusive = rapid.Bool().Draw(rt, "inclusive")
		}
		n := rapid.IntRange(1, 8).Draw(rt, "n")
		got, err := history.ReadIndex(t.Context(), b.Redis, archive, sp, after, n)
		want := pageOf(union, sp, after, n)
		if err != nil || !slices.Equal(got, want) {
			rt.Fatalf("after %v: %v, %v, want %v", after, got, err, want)
		}
	})
}

// The companies of Redis and of the archive are listed in one order, each once, from any of them on.
func TestCompaniesOfBoth(t *testing.T) {
	t.Parallel()
	b := setup(t)
	archive := &listed{}
	var all []uuid.UUID
	for i := range 700 {
		c := uuid.NewSHA1(uuid.Nil, []byte(strconv.Itoa(i)))
		all = append(all, c)
		if i%3 > 0 {
			archive.companies = append(archive.companies, c)
		}
		if i%3 < 2 {
			b.Redis.ZAdd(t.Context(), partition.Key(c, "companies"), redis.Z{Score: float64(i), Member: c.String()})
		}
	}
	slices.SortFunc(all, companyOrder)
	slices.SortFunc(archive.companies, companyOrder)
	for _, first := range []int{0, 1, 350, 699} {
		from := all[first]
		if first == 0 {
			from = uuid.Nil
		}
		var got []uuid.UUID
		for c, err := range history.Companies(t.Context(), b.Redis, archive, from, math.MinInt64) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, c)
		}
		if !slices.Equal(got, all[first:]) {
			t.Errorf("from company %d: %d companies, want %d", first, len(got), len(all)-first)
		}
	}
	if archive.asked > 15 {
		t.Errorf("the archive was asked %d times", archive.asked)
	}
}
