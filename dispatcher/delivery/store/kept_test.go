package store

import (
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/events"
)

// The index entries of a live delivery do not expire, however long it waits.
func TestLiveDeliveryDoesNotExpire(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	waits := h.refs(e, 1)[0]
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(waits, h.fail)}, Matched: true})
	for _, key := range []string{indexKey(liveIndex, h.company, &waits.Subscriber), indexKey(liveIndex, h.company, nil)} {
		if ttl := h.client.PTTL(t.Context(), key).Val(); ttl != forever {
			t.Errorf("%s expires in %v, and the delivery would never be found again", key, ttl)
		}
	}
	h.now = h.now.Add(2 * harnessPolicy.DeadRetention)
	later := delivery.Ref{Ref: h.accepted(t, "later"), Subscriber: waits.Subscriber}
	h.mustWrite(t, Write{Event: later.Ref, Changes: []Change{h.first(later, h.fail)}, Matched: true})
	if stats, err := h.Stats(t.Context(), h.company, waits.Subscriber); err != nil || stats[0].Live != 2 {
		t.Errorf("%+v, %v: want both", stats, err)
	}
}

// Deliveries that are written late, to a settled event or to one that no longer exists, expire
// too.
func TestLateDeliveriesExpire(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	settled := h.accepted(t, "settled")
	h.mustWrite(t, Write{Event: settled, Matched: true})
	gone := events.Ref{Company: h.company, ID: "gone"}
	for _, e := range []events.Ref{settled, gone} {
		for _, late := range [][]Change{
			{h.first(h.refs(e, 1)[0], h.succeed)},
			{h.first(h.refs(e, 1)[0], h.gone)},
		} {
			h.client.Del(t.Context(), deliveriesKey(e))
			h.mustWrite(t, Write{Event: e, Changes: late, Matched: true})
			if ttl := h.client.PTTL(t.Context(), deliveriesKey(e)).Val(); ttl <= 0 {
				t.Errorf("%s, %s: the deliveries have the time to live %v", e.ID, late[0].Next.Status, ttl)
			}
		}
	}
	queued := h.refs(gone, 1)[0]
	h.client.Del(t.Context(), deliveriesKey(gone))
	h.mustWrite(t, Write{Event: gone, Changes: []Change{h.first(queued, h.queue)}})
	if ttl := h.client.PTTL(t.Context(), deliveriesKey(gone)).Val(); ttl != forever {
		t.Errorf("a delivery that waits expires in %v", ttl)
	}
	h.mustWrite(t, Write{Event: gone, Changes: []Change{h.again(t, queued, func(r delivery.Record) delivery.Record { return delivery.Cancel(r, delivery.ReasonExpired, h.now) })}})
	if ttl := h.client.PTTL(t.Context(), deliveriesKey(gone)).Val(); ttl <= 0 {
		t.Errorf("the deliveries of an event that is gone have the time to live %v", ttl)
	}
}

// Only the last attempt keeps its answer, and a success keeps none.
func TestOnlyTheLastAnswerIsKept(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	r := delivery.Record{Status: delivery.StatusPending}
	post := func(outcome attempt.ErrorClass, body string) {
		now = now.Add(time.Second)
		r = delivery.Decide(r, attempt.Result{Class: outcome, ResponseBody: []byte(body), StartedAt: now}, harnessPolicy, now, middle)
	}
	post(attempt.ClassHTTP5xx, "first")
	post(attempt.ClassHTTP5xx, "second")
	if r.Attempts[0].ResponseBody != nil || string(r.Attempts[1].ResponseBody) != "second" {
		t.Errorf("after two failures: %+v", r.Attempts)
	}
	post(attempt.ClassNone, "thanks")
	if r.Status != delivery.StatusDelivered || len(r.Attempts) != 3 {
		t.Fatalf("record %+v", r)
	}
	for _, a := range r.Attempts {
		if a.ResponseBody != nil {
			t.Errorf("attempt %d keeps %q", a.Number, a.ResponseBody)
		}
	}
}
