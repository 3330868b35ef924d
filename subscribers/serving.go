package subscribers

import (
	"math"
	"strconv"

	"spendhook/internal/invalid"
)

// What happens to a subscriber with Ordered or OrderedBy after a dead delivery.
const (
	onDeadContinue = "continue" // the next delivery goes out; the default
	onDeadPause    = "pause"    // the subscriber is paused
)

// Bounds of a RateLimit.
const (
	minPerSecond = 0.01
	maxPerSecond = 10_000
	maxBurst     = 10_000
)

// RateLimit bounds the attempts to one subscriber over all replicas: in any span of t
// seconds at most PerSecond × t + Burst begin.
type RateLimit struct {
	PerSecond float64 `json:"perSecond"` // 0.01 to 10,000
	Burst     int     `json:"burst"`     // 1 to 10,000; 0 in Settings: PerSecond, rounded up
}

func (r *RateLimit) check(problems *invalid.Error) {
	if !(r.PerSecond >= minPerSecond && r.PerSecond <= maxPerSecond) { // NaN too
		problems.Add("/rateLimit/perSecond", "OUT_OF_RANGE", "must be 0.01 to 10,000")
	}
	if r.Burst < 0 || r.Burst > maxBurst {
		problems.Add("/rateLimit/burst", "OUT_OF_RANGE", "must be 1 to 10,000")
	}
	if r.Burst == 0 {
		r.Burst = int(math.Ceil(min(r.PerSecond, maxBurst)))
	}
}

// Rate is the rate of the subscriber's attempts: its RateLimit, and what its receiver allows; nil: none.
func (s *Subscriber) Rate() *RateLimit {
	if s.Verification == nil || s.Verification.PerMinute == 0 {
		return s.RateLimit
	}
	allowed := &RateLimit{PerSecond: float64(s.Verification.PerMinute) / 60, Burst: 1}
	if s.RateLimit != nil {
		allowed.PerSecond = min(allowed.PerSecond, s.RateLimit.PerSecond)
	}
	return allowed
}

// serving returns the arguments of configure in internal/queues/lua/lib.lua, which
// sets how the subscriber's retry set is served.
func (s *Subscriber) serving() []any {
	interval, burst, ordered, onDead, unverified := "", "", "", "", ""
	if rate := s.Rate(); rate != nil {
		interval = strconv.FormatFloat(1000/rate.PerSecond, 'f', -1, 64)
		burst = strconv.Itoa(rate.Burst)
	}
	if s.Ordered {
		ordered = "1"
	}
	if s.OnDead == onDeadPause && (s.Ordered || s.OrderedBy != "") {
		onDead = "1"
	}
	if s.Unverified() {
		unverified = "1"
	}
	return []any{interval, burst, ordered, onDead, unverified}
}
