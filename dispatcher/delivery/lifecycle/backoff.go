package lifecycle

import (
	"math"
	"time"
)

// backoff is the wait before the next attempt after k failures (k ≥ 1) in the
// current run of the schedule, spread evenly by ±jitter (0..1) of itself; rnd
// gives a number in [0,1). The wait is never negative. ok is false when the
// schedule is used up.
func backoff(schedule []time.Duration, k int, jitter float64, rnd func() float64) (wait time.Duration, ok bool) {
	if k < 1 || k > len(schedule) {
		return 0, false
	}
	return spread(schedule[k-1], jitter, rnd()), true
}

// spread moves d by (2r-1)×jitter of itself. A float64 holds a duration to
// within 1 ns up to 104 days, and only the last doubling of the range (146
// years) can overflow, which is cut.
func spread(d time.Duration, jitter, r float64) time.Duration {
	f := float64(d) * (1 + jitter*(2*r-1))
	if f >= math.MaxInt64 {
		return math.MaxInt64
	}
	return max(0, time.Duration(f))
}
