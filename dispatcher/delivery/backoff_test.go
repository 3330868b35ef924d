package delivery

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffFollowsTheSchedule(t *testing.T) {
	t.Parallel()
	p := Policy{Schedule: []time.Duration{5 * time.Second, 5 * time.Minute, 24 * time.Hour}, Jitter: 0.2}
	for i, want := range p.Schedule {
		if got := p.backoff(i+1, func() float64 { return 0.5 }); got != want {
			t.Errorf("after %d failures: %v, want %v", i+1, got, want)
		}
	}
}

func TestBackoffJitterReachesBothEnds(t *testing.T) {
	t.Parallel()
	p := Policy{Schedule: []time.Duration{100 * time.Second}, Jitter: 0.2}
	for r, want := range map[float64]time.Duration{0: 80 * time.Second, 0.75: 110 * time.Second} {
		got := p.backoff(1, func() float64 { return r })
		if got.Round(time.Millisecond) != want {
			t.Errorf("r=%v: %v, want %v", r, got, want)
		}
	}
}

func TestBackoffStaysWithinItsJitter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "d"))
		jitter := rapid.Float64Range(0, 1).Draw(t, "jitter")
		r := rapid.Float64Range(0, 0.999).Draw(t, "r")
		got := Policy{Schedule: []time.Duration{d}, Jitter: jitter}.backoff(1, func() float64 { return r })
		low, high := float64(d)*(1-jitter), float64(d)*(1+jitter)
		if f := float64(got); f < low-1 || f > high+1 {
			t.Fatalf("backoff(%v, ±%v) = %v", d, jitter, got)
		}
	})
}
