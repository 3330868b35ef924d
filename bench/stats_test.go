package main

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(i + 1)
	}
	for q, want := range map[float64]uint32{0: 1, 0.5: 50, 0.99: 99, 0.991: 100, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v of 1..100 = %d, want %d", q, got, want)
		}
	}
	if got := quantile([]uint32(nil), 0.5); got != 0 {
		t.Errorf("quantile of nothing = %d", got)
	}
}

// TestQuantileCounts: at most the share q of all values is below a quantile, and at least q is not
// above it.
func TestQuantileCounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0, 50), 1, 200).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		slices.Sort(values)
		got := quantile(values, q)
		below, upTo := 0, 0
		for _, v := range values {
			if v < got {
				below++
			}
			if v <= got {
				upTo++
			}
		}
		n := float64(len(values))
		if float64(below) > q*n || float64(upTo) < q*n {
			t.Fatalf("quantile %v of %v is %v: %d below, %d up to it", q, values, got, below, upTo)
		}
	})
}
