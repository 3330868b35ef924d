package delivery

import (
	"time"

	"spendhook/dispatcher/delivery/attempt"
)

// Policy is how deliveries are retried and kept. Durations are positive, except KeepDelivered.
type Policy struct {
	Schedule      []time.Duration // the wait after each failed attempt; after the last one the delivery is dead
	Jitter        float64         // each wait is spread by this fraction both ways, 0..1
	RetryAfterMax time.Duration   // the longest Retry-After that is obeyed
	DeadRetention time.Duration   // how long dead deliveries, and their events, are kept
	Retention     time.Duration   // how long settled deliveries are kept
	KeepDelivered time.Duration   // how long an event keeps its payload if all its deliveries were DELIVERED or CANCELLED; 0: Retention
	FailingAfter  int             // failed attempts in a row that make a subscriber failing
	DisableAfter  time.Duration   // failing this long without a success disables a subscriber
}

// FailsFor returns how long a subscriber whose retries take a time may fail before it is disabled.
func (p Policy) FailsFor(retries time.Duration) time.Duration {
	return max(p.DisableAfter, time.Duration(float64(retries)*(1+p.Jitter)))
}

// lockedWait is the minimum wait of a delivery while a secret of its subscriber cannot be decrypted. The
// maximum is twice lockedWait.
const lockedWait = 30 * time.Second

// Decide returns the delivery after an attempt. An attempt that was not made is not counted. rnd
// returns the jitter, in [0,1).
func Decide(r Record, res attempt.Result, p Policy, now time.Time, rnd func() float64) Record {
	switch res.Class {
	case attempt.ClassAborted:
		return Queue(r, ReasonInterrupted, now)
	case attempt.ClassLocked:
		wait := lockedWait + time.Duration(rnd()*float64(lockedWait))
		return again(r, ReasonLocked, now.Add(wait), now)
	default: // the attempt was made
	}
	r.Count++
	r.Attempts = attempt.Append(r.Attempts, r.Count, res)
	r.Updated = now.UnixMilli()
	if res.Success() {
		r.Status, r.Step, r.Due, r.Reason = StatusDelivered, 0, 0, ""
		return r
	}
	if r.Status == StatusDead { // another replica took the delivery over, and failed too
		return r
	}
	r.Step++
	r.Due, r.Reason = 0, ""
	switch {
	case res.Class == attempt.ClassGone:
		r.Status, r.Reason = StatusDead, ReasonGone
	case res.Class == attempt.ClassStopped:
		r.Status, r.Reason = StatusDead, ReasonStopped
	case res.Class == attempt.ClassTransform: // the next attempt would fail too
		r.Status, r.Reason = StatusDead, ReasonTransform
	case r.Step > len(p.Schedule):
		r.Status, r.Reason = StatusDead, ReasonExhausted
	default:
		r.Status = StatusRetrying
		r.Due = now.Add(max(p.backoff(r.Step, rnd), min(res.RetryAfter, p.RetryAfterMax))).UnixMilli()
	}
	return r
}

// backoff returns the wait after the k-th failure in a run of the schedule (k ≥ 1), spread evenly by
// ±Jitter of the wait. rnd returns a number in [0,1). The settings exclude waits that could overflow.
func (p Policy) backoff(k int, rnd func() float64) time.Duration {
	return time.Duration(float64(p.Schedule[k-1]) * (1 + p.Jitter*(2*rnd()-1)))
}

// Queue moves a delivery to its retry set, because there is no place in memory, the
// breaker is open, or this daemon cancelled its attempt. The delivery is due at once.
func Queue(r Record, reason string, now time.Time) Record {
	return again(r, reason, now, now)
}

// Restart starts the schedule again, due at once, for a retry, replay or recover job.
func Restart(r Record, reason string, now time.Time) Record {
	r.Step = 0
	return again(r, reason, now, now)
}

// Requeue makes a waiting delivery due at once, and keeps its reason.
func Requeue(r Record, now time.Time) Record { return again(r, r.Reason, now, now) }

func again(r Record, reason string, due, now time.Time) Record {
	r.Status, r.Reason = StatusPending, reason
	if r.Step > 0 {
		r.Status = StatusRetrying
	}
	r.Due, r.Updated = due.UnixMilli(), now.UnixMilli()
	return r
}

// Cancel ends a delivery because its subscriber was deleted, its event no longer exists, or a client
// dropped the delivery.
func Cancel(r Record, reason string, now time.Time) Record {
	r.Status, r.Reason = StatusCancelled, reason
	r.Due, r.Updated = 0, now.UnixMilli()
	return r
}
