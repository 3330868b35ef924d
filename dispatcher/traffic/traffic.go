// Package traffic counts accepted events and delivery attempts for charts: by minute for three
// hours and by hour for seven days, for each company, for each subscriber with traffic, and in
// total. Metrics have a longer history. Counts are gathered in memory and written seldom. A
// crash, an unavailable Redis or an overload loses counts, but never delays a delivery.
package traffic

import (
	"math"
	"time"

	"github.com/google/uuid"
)

// Attempt is one delivery attempt to be counted.
type Attempt struct {
	Company, Subscriber uuid.UUID
	StatusCode          int // 0: no answer
	Success             bool
	Dead                bool // it was the last one of its delivery
	Duration            time.Duration
}

// Series has the counts over time, the oldest first.
type Series struct {
	Minutes []Point // 180, the last of which has not ended
	Hours   []Point // 168, the same
}

// Point is the counts of a minute or an hour. Up to 4,095 they are exact, beyond they have
// four exact digits.
type Point struct {
	At        time.Time // when it began
	Accepted  int64     // events; of a subscriber 0
	Delivered int64     // attempts that succeeded
	Failed    int64     // attempts that failed: of a subscriber the sum of the next three
	Refused   int64     // answered 3xx or 4xx; of a subscriber alone
	Erred     int64     // answered 5xx, or by no proper answer; of a subscriber alone
	Silent    int64     // not answered; of a subscriber alone
	Dead      int64     // deliveries that became DEAD; of a subscriber 0
	Pending   int64     // pending events at its end, or at the last known earlier end; of a subscriber 0

	P50, P95 time.Duration // of its attempts, estimated; of a subscriber alone, 0: it had none
}

// Attempts is the number of attempts, succeeded and failed.
func (p Point) Attempts() int64 { return p.Delivered + p.Failed }

// Sum adds points up; its latencies are the means, weighted by attempts.
func Sum(points []Point) (sum Point) {
	var p50, p95 float64
	for _, p := range points {
		sum.Accepted += p.Accepted
		sum.Delivered += p.Delivered
		sum.Failed += p.Failed
		sum.Refused += p.Refused
		sum.Erred += p.Erred
		sum.Silent += p.Silent
		sum.Dead += p.Dead
		sum.Pending = p.Pending
		p50 += float64(p.P50) * float64(p.Attempts())
		p95 += float64(p.P95) * float64(p.Attempts())
	}
	if n := float64(sum.Attempts()); n > 0 {
		sum.P50, sum.P95 = time.Duration(p50/n), time.Duration(p95/n)
	}
	return sum
}

// Ranked is a subscriber with traffic in this hour or the one before.
type Ranked struct {
	Company, Subscriber uuid.UUID
	Failed              int64         // attempts, in both hours
	P95                 time.Duration // of the latest seconds in which it had attempts
}

// Latencies are kept as one byte: 16 steps for each doubling of a millisecond, 4 % wide.
const stepsPerDoubling = 16

func latencyCode(d time.Duration) int {
	return min(255, int(math.Round(stepsPerDoubling*math.Log2(1+float64(d)/float64(time.Millisecond)))))
}

func latencyOf(code byte) time.Duration {
	return time.Duration((math.Exp2(float64(code)/stepsPerDoubling) - 1) * float64(time.Millisecond))
}

// count reads what lua/add.lua writes as a count.
func count(code uint16) int64 {
	exponent, rest := code>>12, int64(code&4095)
	if exponent == 0 {
		return rest
	}
	return (4096 + rest) << (exponent - 1)
}
