package delivery

import (
	"net/http"
	"time"
)

// Result is what came of an attempt.
type Result struct {
	Outcome    Outcome
	StatusCode int    // 0 when no response came
	Class      string // of the failure; empty: none
	Body       []byte // of the answer
	StartedAt  time.Time
	Duration   time.Duration
	RetryAfter time.Duration // how long the receiver asked to wait; 0: it did not
	Sent       http.Header   // what the request was made with; nil when none was
	Waited     Waited
	Timing     Timing
}

// Outcome says what an attempt means for its delivery.
type Outcome int

// The outcomes of an attempt. Those from Interrupted on count as no attempt.
const (
	Failed      Outcome = iota
	Succeeded           // the receiver acknowledged it
	Gone                // the receiver wants no more: 410
	Interrupted         // it was cut short by this daemon
	Locked              // nothing was sent: a secret of the subscriber does not open
)

// Policy is how deliveries are retried and kept. All other durations are positive.
type Policy struct {
	Schedule      []time.Duration // the wait after each failed attempt; after the last one the delivery is dead
	Jitter        float64         // each wait is spread by this fraction both ways, 0..1
	RetryAfterMax time.Duration   // the longest Retry-After that is obeyed
	DeadRetention time.Duration   // how long dead deliveries, and their events, are kept
	Retention     time.Duration   // how long settled deliveries are kept
	KeepDelivered time.Duration   // how long an event is kept whole whose deliveries have all ended well; 0: as the others
	FailingAfter  int             // failed attempts in a row that make a subscriber failing
	DisableAfter  time.Duration   // failing this long without a success disables a subscriber
}

// Decide says what becomes of a delivery after an attempt. It is pure: rnd gives
// the jitter, in [0,1).
func Decide(r Record, res Result, p Policy, now time.Time, rnd func() float64) Record {
	switch res.Outcome {
	case Interrupted:
		return interrupt(r, now)
	case Locked:
		return lock(r, now, rnd)
	case Succeeded, Failed, Gone:
	}
	r.log(res)
	r.Updated, r.Due, r.Reason = now.UnixMilli(), 0, ""
	if res.Outcome == Succeeded {
		r.Status, r.Step = StatusDelivered, 0
		return r
	}
	r.Step++
	if res.Outcome == Gone {
		r.Status, r.Reason = StatusDead, ReasonGone
		return r
	}
	wait, more := backoff(p.Schedule, r.Step, p.Jitter, rnd)
	if !more {
		r.Status, r.Reason = StatusDead, ReasonExhausted
		return r
	}
	r.Status = StatusRetrying
	r.Due = now.Add(max(wait, min(res.RetryAfter, p.RetryAfterMax))).UnixMilli()
	return r
}

// interrupt requeues a delivery whose attempt was cut short by this daemon: no
// attempt is counted, and it is due at once.
func interrupt(r Record, now time.Time) Record {
	return again(r, ReasonInterrupted, now, now)
}

// Queue puts a delivery into the queue of its endpoint, which has no place for it
// in memory, or whose breaker is open; no attempt is counted, and it is due at once.
func Queue(r Record, reason string, now time.Time) Record {
	return again(r, reason, now, now)
}

// lockedWait is when to look again whether a subscriber's secrets open.
const lockedWait = 30 * time.Second

// lock puts off a delivery whose subscriber has a secret that does not open; no
// attempt is counted. The waits are spread up to twice lockedWait.
func lock(r Record, now time.Time, rnd func() float64) Record {
	wait := lockedWait + time.Duration(rnd()*float64(lockedWait))
	return again(r, ReasonLocked, now.Add(wait), now)
}

// Restart begins the schedule again, at once: a retry, replay or recovery.
func Restart(r Record, reason string, now time.Time) Record {
	r.Step = 0
	return again(r, reason, now, now)
}

// Requeue makes a waiting delivery due at once, for the reason it has.
func Requeue(r Record, now time.Time) Record { return again(r, r.Reason, now, now) }

func again(r Record, reason string, due, now time.Time) Record {
	r.Status, r.Reason = r.waiting(), reason
	r.Due, r.Updated = due.UnixMilli(), now.UnixMilli()
	return r
}

// Hold keeps back a delivery whose subscriber is disabled: it stays live, with no
// next attempt, until the subscriber is enabled again.
func Hold(r Record, now time.Time) Record {
	r.Status, r.Reason = r.waiting(), ReasonSubscriberDisabled
	r.Due, r.Updated = 0, now.UnixMilli()
	return r
}

// Expire ends a delivery whose event is no longer kept, so that nothing is
// left to send.
func Expire(r Record, now time.Time) Record {
	r = Cancel(r, now)
	r.Reason = ReasonExpired
	return r
}

// Drop ends a delivery that a client gave up: in the quarantine, or while it waited for
// a paused subscriber.
func Drop(r Record, now time.Time) Record {
	r = Cancel(r, now)
	r.Reason = ReasonDropped
	return r
}

// Cancel ends a delivery whose subscriber was deleted.
func Cancel(r Record, now time.Time) Record {
	r.Status, r.Reason = StatusCancelled, ReasonSubscriberDeleted
	r.Due, r.Updated = 0, now.UnixMilli()
	return r
}
