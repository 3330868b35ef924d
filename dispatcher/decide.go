package dispatcher

import (
	"net/http"
	"time"

	"spendhook/dispatcher/webhook"
)

// Policy is how deliveries are retried and kept. All durations are positive.
type Policy struct {
	Schedule      []time.Duration // the wait after each failed attempt; after the last one the delivery is dead
	Jitter        float64         // each wait is spread by this fraction both ways, 0..1
	RetryAfterMax time.Duration   // the longest Retry-After that is obeyed
	DeadRetention time.Duration   // how long dead and held deliveries, and their events, are kept
	Retention     time.Duration   // how long settled deliveries are kept
	FailingAfter  int             // failed attempts in a row that make a subscriber failing
	DisableAfter  time.Duration   // failing this long without a success disables a subscriber
}

// decide says what becomes of a delivery after an attempt. It is pure: rnd
// gives the jitter, in [0,1).
func decide(r record, res webhook.Result, p Policy, now time.Time, rnd func() float64) record {
	switch res.Class { //nolint:exhaustive // the others are attempts
	case webhook.ClassAborted:
		return interrupt(r, now)
	case webhook.ClassLocked:
		return lock(r, now, rnd)
	}
	r.log(res)
	r.Updated, r.Due, r.Reason = now.UnixMilli(), 0, ""
	if res.Success() {
		r.Status, r.Step = StatusDelivered, 0
		return r
	}
	r.Step++
	if res.StatusCode == http.StatusGone {
		r.Status, r.Reason = StatusDead, ReasonGone
		return r
	}
	wait, more := Backoff(p.Schedule, r.Step, p.Jitter, rnd)
	if !more {
		r.Status, r.Reason = StatusDead, ReasonExhausted
		return r
	}
	r.Status = StatusRetrying
	r.Due = now.Add(max(wait, min(res.RetryAfter, p.RetryAfterMax))).UnixMilli()
	return r
}

// interrupt hands back a delivery whose attempt we cut short ourselves: it
// counts no attempt and is due at once.
func interrupt(r record, now time.Time) record {
	return again(r, ReasonInterrupted, now, now)
}

// postpone puts off a delivery that found its endpoint busy or its breaker
// open; no attempt is counted.
func postpone(r record, wait time.Duration, now time.Time) record {
	return again(r, ReasonDeferred, now.Add(wait), now)
}

// lockedWait is when to look again whether a subscriber's secrets open.
const lockedWait = 30 * time.Second

// lock puts off a delivery whose subscriber has a secret that does not open; no
// attempt is counted. The waits are spread up to twice lockedWait.
func lock(r record, now time.Time, rnd func() float64) record {
	wait := lockedWait + time.Duration(rnd()*float64(lockedWait))
	return again(r, ReasonLocked, now.Add(wait), now)
}

// restart begins the schedule anew, at once: a retry, replay or recovery.
func restart(r record, reason string, now time.Time) record {
	r.Step = 0
	return again(r, reason, now, now)
}

func again(r record, reason string, due, now time.Time) record {
	r.Status, r.Reason = r.waiting(), reason
	r.Due, r.Updated = due.UnixMilli(), now.UnixMilli()
	return r
}

// hold parks a delivery whose subscriber is disabled: it stays live, with no
// next attempt, until the subscriber is enabled again.
func hold(r record, now time.Time) record {
	r.Status, r.Reason = r.waiting(), ReasonSubscriberDisabled
	r.Due, r.Updated = 0, now.UnixMilli()
	return r
}

// expire ends a delivery whose event is no longer kept, so that nothing is
// left to send.
func expire(r record, now time.Time) record {
	r = cancel(r, now)
	r.Reason = ReasonExpired
	return r
}

// cancel ends a delivery whose subscriber was deleted.
func cancel(r record, now time.Time) record {
	r.Status, r.Reason = StatusCancelled, ReasonSubscriberDeleted
	r.Due, r.Updated = 0, now.UnixMilli()
	return r
}
