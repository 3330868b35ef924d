package lifecycle

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffFollowsTheSchedule(t *testing.T) {
	t.Parallel()
	schedule := []time.Duration{5 * time.Second, 5 * time.Minute, 24 * time.Hour}
	middle := func() float64 { return 0.5 }
	for k, want := range map[int]time.Duration{1: schedule[0], 2: schedule[1], 3: schedule[2]} {
		if got, ok := backoff(schedule, k, 0.2, middle); !ok || got != want {
			t.Errorf("Backoff(k=%d) = %v, %v, want %v", k, got, ok, want)
		}
	}
	for _, k := range []int{math.MinInt, -1, 0, 4, math.MaxInt} {
		if got, ok := backoff(schedule, k, 0.2, middle); ok || got != 0 {
			t.Errorf("Backoff(k=%d) = %v, %v, want none", k, got, ok)
		}
	}
}

func TestBackoffJitterReachesBothEnds(t *testing.T) {
	t.Parallel()
	schedule := []time.Duration{100 * time.Second}
	for r, want := range map[float64]time.Duration{0: 80 * time.Second, 0.75: 110 * time.Second} {
		got, _ := backoff(schedule, 1, 0.2, func() float64 { return r })
		if got.Round(time.Millisecond) != want {
			t.Errorf("r=%v: %v, want %v", r, got, want)
		}
	}
}

func TestBackoffStaysWithinItsJitter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "d"))
		jitter := rapid.Float64Range(0, 1).Draw(t, "jitter")
		r := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "r")

		got, ok := backoff([]time.Duration{d}, 1, jitter, func() float64 { return r })
		if !ok || got < 0 {
			t.Fatalf("Backoff(%v) = %v, %v", d, got, ok)
		}
		slack := 1e-9 // of float64 arithmetic
		low, high := float64(d)*(1-jitter-slack), float64(d)*(1+jitter+slack)+1
		if f := float64(got); f < low-1 || (f > high && got != math.MaxInt64) {
			t.Fatalf("Backoff(%v, ±%v) = %v", d, jitter, got)
		}
	})
}

func TestNegativeBackoffIsZero(t *testing.T) {
	t.Parallel()
	got, ok := backoff([]time.Duration{-time.Hour}, 1, 0.2, func() float64 { return 0.9 })
	if !ok || got != 0 {
		t.Errorf("Backoff(-1h) = %v, %v, want 0", got, ok)
	}
}
