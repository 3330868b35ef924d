package inspect_test

import (
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/inspect"
)

// The explanation tells in words what a support person asks: how far the delivery is, the last answer, and what is next.
func TestDetail(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC).UnixMilli()
	failed := attempt.Attempt{Number: 3, StartedAt: at, StatusCode: 503, Error: "http_5xx", ResponseBody: []byte("the ledger\n is \x1b[31mclosed")}
	of := func(status delivery.Status, reason string, due int64, list ...attempt.Attempt) *delivery.Delivery {
		return &delivery.Delivery{Record: delivery.Record{Status: status, Reason: reason, Due: due, Count: len(list), Attempts: list}}
	}
	for want, e := range map[string]inspect.Explanation{
		"Delivered: attempt 1 was answered 204 at 2026-11-20T12:00:00Z.": {
			Verdict: inspect.VerdictDelivered, Delivery: of(delivery.StatusDelivered, "", 0, attempt.Attempt{Number: 1, StartedAt: at, StatusCode: 204}),
		},
		`Given up: every attempt of the schedule failed. Attempt 3 was answered 503: the receiver failed (the ledger is \u001b[31mclosed). Retry it, or recover the subscriber.`: {
			Verdict: inspect.VerdictDead, Delivery: of(delivery.StatusDead, delivery.ReasonExhausted, 0, failed),
		},
		"Given up: the transform of the subscriber failed on the event. Attempt 1 sent nothing: the transform failed on the event (no such key: iban). Mend the transform, then retry it.": {
			Verdict: inspect.VerdictDead, Delivery: of(delivery.StatusDead, delivery.ReasonTransform, 0, attempt.Attempt{Number: 1, StartedAt: at, Error: "transform", Transform: "no such key:\n iban"}),
		},
		"Cancelled: the subscriber was deleted.": {Verdict: inspect.VerdictCancelled, Delivery: of(delivery.StatusCancelled, delivery.ReasonSubscriberDeleted, 0)},
		"Attempt 2 is under way.":                {Verdict: inspect.VerdictPending, Delivery: of(delivery.StatusDelivering, "", 0, failed)},
		"Not attempted yet: the subscriber is paused or not verified.": {
			Verdict: inspect.VerdictPending, Delivery: of(delivery.StatusPending, delivery.ReasonPaused, at),
		},
		"It waits: the endpoint sent Retry-After. Attempt 2 had no answer: no answer within the time-out. The next attempt is at 2026-11-20T12:00:00Z.": {
			Verdict: inspect.VerdictPending, Delivery: of(delivery.StatusRetrying, delivery.ReasonRetryAfter, at, attempt.Attempt{Number: 2, Error: "timeout"}),
		},
		"The delivery of event e-1, which has the same value of orderedBy, must end first.": {
			Verdict: inspect.VerdictPending, Delivery: of(delivery.StatusPending, "", at), Ahead: "e-1",
		},
		"The event is on its way.":                               {Verdict: inspect.VerdictPending},
		"The filter of the subscriber does not match the event.": {Verdict: inspect.VerdictFiltered},
	} {
		if got := e.Detail(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
