package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/endpoint"
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/events"
	"spendhook/events/eventtype"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

func TestEventReachesEveryMatchingSubscriber(t *testing.T) {
	t.Parallel()
	h := setup(t)
	a, b := receive(t, nil), receive(t, nil)
	subA, subB := h.subscribe(a.URL), h.subscribe(b.URL)
	other := h.subscribeTo(h.company, a.URL+"/other", "SOMETHING_ELSE")
	id := h.emit(1)[0]
	for _, s := range []subscribers.Subscriber{subA, subB} {
		d := h.reaches(id, s, delivery.StatusDelivered)
		if d.Count != 1 || len(d.Attempts) != 1 || d.Attempts[0].StatusCode != http.StatusOK || d.EventType != "PAYMENT_PAID" {
			t.Errorf("delivery = %+v", d)
		}
	}
	if _, err := h.Deliveries.Delivery(t.Context(), h.company, id+"."+other.UUID.String()); !errors.Is(err, delivery.ErrNotFound) {
		t.Errorf("delivery to a subscriber of other events: %v", err)
	}
	wh, err := standardwebhooks.NewWebhook(subA.Secrets[0].Key.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(a.got[0].body, a.got[0].header); err != nil {
		t.Error(err)
	}
	h.settled()
}

// A pattern in the list of events matches every type that begins so.
func TestEventReachesTheSubscribersToItsPattern(t *testing.T) {
	t.Parallel()
	h := setup(t)
	some, all, none := receive(t, nil), receive(t, nil), receive(t, nil)
	toSome, toAll := h.subscribeTo(h.company, some.URL, "payment.*"), h.subscribeTo(h.company, all.URL, "*")
	h.subscribeTo(h.company, none.URL, "payment")
	paid, card := h.emitType("payment.paid", 1), h.emitType("CARD_LOCKED", 1)
	h.reachAll(paid, toSome, delivery.StatusDelivered)
	h.reachAll(slices.Concat(paid, card), toAll, delivery.StatusDelivered)
	some.once(t, paid)
	all.once(t, slices.Concat(paid, card))
	if n := none.count(); n > 0 {
		t.Errorf("%d deliveries to the subscriber to another type", n)
	}
	h.idle()
}

func TestEventWithoutMatchingSubscriberIsSettled(t *testing.T) {
	t.Parallel()
	h := setup(t)
	ids := h.emit(100)
	h.settled()
	r := events.Ref{Company: h.company, ID: ids[0]}
	got, err := h.Deliveries.SumUp(t.Context(), []events.Ref{r}, store.Filter{})
	if err != nil || got[0].Status != store.EventNoSubscriber {
		t.Errorf("status = %v, %v", got, err)
	}
}

// An event that matches only disabled subscribers is HELD until one is enabled.
func TestEventOfADisabledSubscriberIsHeld(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := h.subscribe("http://127.0.0.1:1")
	h.update(sub, subscribers.Settings{Enabled: new(false)})
	id := h.emit(1)[0]
	h.settled()
	got, err := h.Deliveries.SumUp(t.Context(), []events.Ref{{Company: h.company, ID: id}}, store.Filter{})
	if err != nil || got[0].Status != store.EventHeld {
		t.Errorf("status = %v, %v", got, err)
	}
}

func TestFailedDeliveryIsRetriedUntilDelivered(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("no"))
		}
	})
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	d := h.reaches(id, sub, delivery.StatusDelivered)
	if d.Count != 3 || len(d.Attempts) != 3 {
		t.Fatalf("delivery = %+v", d)
	}
	for i, class := range []attempt.ErrorClass{attempt.ClassHTTP5xx, attempt.ClassHTTP5xx, attempt.ClassNone} {
		if d.Attempts[i].Error != string(class) {
			t.Errorf("attempt %d: %q, want %q", i+1, d.Attempts[i].Error, class)
		}
	}
	for i, g := range rc.got {
		if g.header.Get(signature.HeaderID) != id || string(g.body) != string(rc.got[0].body) {
			t.Errorf("attempt %d sent another id or body", i+1)
		}
	}
	h.settled()
}

func TestExhaustedDeliveryIsADeadLetterUntilRetried(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var healed atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !healed.Load() {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("no"))
		}
	})
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	d := h.reaches(id, sub, delivery.StatusDead)
	if d.Count != 4 || d.Reason != delivery.ReasonExhausted || d.NextAttemptAt() != nil || string(d.Attempts[3].ResponseBody) != "no" {
		t.Errorf("dead letter = %+v", d)
	}
	page, err := h.Deliveries.List(t.Context(), store.Filter{Company: &h.company, Statuses: []delivery.Status{delivery.StatusDead}})
	if err != nil || len(page.Items) != 1 || page.Items[0].PublicID() != d.PublicID() {
		t.Fatalf("dead letters = %+v, %v", page, err)
	}
	if n := h.deadLetters(); n != 1 {
		t.Errorf("%d dead letters counted", n)
	}
	healed.Store(true)
	if _, err := h.Redelivery.Retry(t.Context(), h.company, d.PublicID()); err != nil {
		t.Fatal(err)
	}
	if d = h.reaches(id, sub, delivery.StatusDelivered); d.Count != 5 {
		t.Errorf("delivered after %d attempts, want 5", d.Count)
	}
	if n := h.deadLetters(); n != 0 {
		t.Errorf("%d dead letters counted after the retry", n)
	}
	h.settled()
}

func TestDeliveriesOfADisabledSubscriberAreHeldUntilItIsEnabled(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var healed atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if !healed.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	sub := h.subscribe(rc.URL)
	ids := h.emit(20)
	h.reaches(ids[19], sub, delivery.StatusRetrying)
	h.enable(sub, false)
	for _, id := range ids {
		h.becomes(id, sub, "held or dead", func(d delivery.Delivery) bool { return held(d) || d.Status == delivery.StatusDead })
	}
	before := rc.count()
	healed.Store(true)
	h.enable(sub, true)
	for _, id := range ids {
		h.becomes(id, sub, "delivered or dead", func(d delivery.Delivery) bool {
			return d.Status == delivery.StatusDelivered || d.Status == delivery.StatusDead
		})
	}
	h.settled()
	if got := int64(rc.count() - before); got != 20-h.deadLetters() {
		t.Errorf("%d were sent once enabled, %d are dead", got, h.deadLetters())
	}
}

func TestGoneEndpointIsDisabled(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := h.subscribe(receive(t, status(http.StatusGone)).URL)
	watcher := receive(t, nil)
	h.subscribeTo(h.company, watcher.URL, eventtype.SubscriberDisabled, eventtype.DeliveryDead)
	if d := h.reaches(h.emit(1)[0], sub, delivery.StatusDead); d.Reason != delivery.ReasonGone {
		t.Errorf("reason = %s", d.Reason)
	}
	eventually(t, func() bool {
		s, err := h.opts.Subscribers.Get(t.Context(), h.company, sub.UUID)
		return err == nil && !s.Enabled && s.DisabledReason == subscribers.ReasonGone
	}, "the subscriber is disabled")
	eventually(t, func() bool { return watcher.count() == 2 }, "the watcher receives both notices")
	h.settled()
}

// A subscriber gets what its transform makes of an event, signed, and the same bytes on each attempt. An event on which
// the transform fails is dead without an attempt at the endpoint, and a retry sends it after the transform was mended.
func TestATransformMakesTheBody(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	sub := h.subscribeTo(h.company, rc.URL, "PAYMENT_PAID", "CARD_ISSUED")
	change := func(transform string) {
		t.Helper()
		if _, err := h.opts.Subscribers.Update(t.Context(), h.company, sub.UUID, subscribers.Settings{Transform: &transform}); err != nil {
			t.Fatal(err)
		}
		h.settled()
	}
	change(`event == "PAYMENT_PAID" ? {"text": event, "n": metadata.n + 1} : {"m": metadata.m}`)
	h.reaches(h.emit(1)[0], sub, delivery.StatusDelivered)
	failing := h.emitType("CARD_ISSUED", 1)[0]
	d := h.reaches(failing, sub, delivery.StatusDead)
	if last := d.Attempts[len(d.Attempts)-1]; d.Reason != delivery.ReasonTransform || d.Count != 1 || last.Error != string(attempt.ClassTransform) ||
		last.Transform != "no such key: m" || last.Sent != "" {
		t.Errorf("reason %s after %d attempts, %+v", d.Reason, d.Count, last)
	}
	change(`{"text": id}`)
	if _, err := h.Redelivery.Retry(t.Context(), h.company, failing+"."+sub.UUID.String()); err != nil {
		t.Fatal(err)
	}
	h.reaches(failing, sub, delivery.StatusDelivered)
	h.settled()
	var bodies []string
	for _, got := range rc.got {
		bodies = append(bodies, string(got.body))
	}
	want := []string{`{"n":2,"text":"PAYMENT_PAID"}`, `{"n":2,"text":"PAYMENT_PAID"}`, `{"text":"` + failing + `"}`}
	if !slices.Equal(bodies, want) {
		t.Errorf("got %q, want %q", bodies, want)
	}
}

// A receiver ends the attempts of one delivery; the others and the subscriber go on, and a retry starts again.
func TestAReceiverEndsTheAttempts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var refuses atomic.Bool
	refuses.Store(true)
	rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		switch {
		case !refuses.Load() || r.Header.Get("webhook-sequence") == "3":
		case r.Header.Get("webhook-sequence") == "1":
			w.WriteHeader(http.StatusUnprocessableEntity)
		default:
			w.Header().Set("Webhook-Delivery", "stop")
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	sub := h.subscribe(rc.URL)
	if _, err := h.opts.Subscribers.Update(t.Context(), h.company, sub.UUID, subscribers.Settings{StopOn: &[]int{422}}); err != nil {
		t.Fatal(err)
	}
	h.settled()
	ids := h.emit(3)
	for _, id := range ids[:2] {
		if d := h.reaches(id, sub, delivery.StatusDead); d.Reason != delivery.ReasonStopped || d.Count != 1 {
			t.Errorf("after %d attempts: %s", d.Count, d.Reason)
		}
	}
	h.reaches(ids[2], sub, delivery.StatusDelivered)
	refuses.Store(false)
	if _, err := h.Redelivery.Retry(t.Context(), h.company, ids[0]+"."+sub.UUID.String()); err != nil {
		t.Fatal(err)
	}
	h.reaches(ids[0], sub, delivery.StatusDelivered)
	h.settled()
}

func TestASubscriberHasItsOwnSchedule(t *testing.T) {
	t.Parallel()
	h := setup(t)
	failing := receive(t, status(http.StatusInternalServerError)).URL
	own, usual := h.subscribe(failing+"/own"), h.subscribe(failing+"/usual")
	h.update(own, subscribers.Settings{RetrySchedule: &[]int{3600}})
	id := h.emit(1)[0]
	h.reaches(id, usual, delivery.StatusDead)
	d := h.reaches(id, own, delivery.StatusRetrying)
	if wait := time.UnixMilli(d.Due).Sub(time.UnixMilli(d.Updated)); d.Count != 1 || wait < 45*time.Minute || wait > 75*time.Minute {
		t.Errorf("after %d attempts it waits for %v", d.Count, wait)
	}
}

func TestGoneFromAFormerURLDoesNotDisableTheSubscriber(t *testing.T) {
	t.Parallel()
	h := setup(t)
	gate := make(chan struct{})
	old := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-gate
		w.WriteHeader(http.StatusGone)
	})
	sub := h.subscribe(old.URL)
	id := h.emit(1)[0]
	eventually(t, func() bool { return old.count() == 1 }, "it is in flight")
	now := receive(t, nil)
	h.update(sub, subscribers.Settings{CallbackURL: &now.URL})
	close(gate)
	h.reaches(id, sub, delivery.StatusDead)
	h.stop(patience) // waits until the 410 has been handled
	if s, err := h.opts.Subscribers.Get(t.Context(), h.company, sub.UUID); err != nil || !s.Enabled {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestDeletedSubscribersDeliveriesAreCancelled(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = []time.Duration{time.Hour} })
	h.start()
	sub := h.subscribe(receive(t, status(http.StatusInternalServerError)).URL)
	ids := h.emit(3)
	h.reachAll(ids, sub, delivery.StatusRetrying)
	if err := h.service.Delete(t.Context(), h.company, sub.UUID); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if d := h.reaches(id, sub, delivery.StatusCancelled); d.Reason != delivery.ReasonSubscriberDeleted {
			t.Errorf("reason = %s", d.Reason)
		}
	}
	h.settled()
	if _, err := h.Redelivery.Retry(t.Context(), h.company, ids[0]+"."+sub.UUID.String()); !errors.Is(err, delivery.ErrSubscriberGone) {
		t.Errorf("retry for a deleted subscriber: %v", err)
	}
}

// A delivery of a deleted subscriber is cancelled in its turn, also when its subscriber was
// disabled.
func TestDeliveryOfADeletedSubscriberEndsInItsTurn(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	subs := []subscribers.Subscriber{h.subscribe(rc.URL), h.subscribe(rc.URL + "/disabled")}
	id := h.emit(1)[0]
	for _, sub := range subs {
		h.write(sub.UUID, []string{id}, time.Now(), due)
	}
	h.enable(subs[1], false)
	for _, sub := range subs {
		if err := h.opts.Subscribers.Delete(t.Context(), h.company, sub.UUID); err != nil {
			t.Fatal(err)
		}
	}
	h.start()
	for _, sub := range subs {
		h.reaches(id, sub, delivery.StatusCancelled)
	}
	h.settled()
	if rc.count() != 0 {
		t.Error("a deleted subscriber was sent to")
	}
}

func TestSubscriberChangeAppliesToTheNextEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := h.subscribe(receive(t, nil).URL)
	for range 20 {
		h.enable(sub, false)
		missed := h.emit(1)[0]
		h.settled()
		if _, err := h.Deliveries.Delivery(t.Context(), h.company, missed+"."+sub.UUID.String()); !errors.Is(err, delivery.ErrNotFound) {
			t.Fatalf("a disabled subscriber was sent %s: %v", missed, err)
		}
		h.enable(sub, true)
		h.reaches(h.emit(1)[0], sub, delivery.StatusDelivered)
	}
}

func TestEventStatusAndExplain(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	id := h.emit(1)[0]
	r := events.Ref{Company: h.company, ID: id}
	want := func(status store.EventStatus, verdict inspect.Verdict) {
		t.Helper()
		got, err := h.Deliveries.SumUp(t.Context(), []events.Ref{r}, store.Filter{})
		if err != nil || got[0].Status != status {
			t.Errorf("event status = %v, %v, want %s", got, err, status)
		}
		why, err := h.inspector.Explain(t.Context(), r)
		if err != nil || len(why) != 1 || why[0].Verdict != verdict {
			t.Errorf("explanation = %+v, %v, want %s", why, err, verdict)
		}
	}
	want(store.EventPending, inspect.VerdictPending)
	h.start()
	h.reaches(id, sub, delivery.StatusDelivered)
	h.settled()
	want(store.EventDelivered, inspect.VerdictDelivered)
	if _, err := h.inspector.Explain(t.Context(), events.Ref{Company: h.company, ID: "unknown"}); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("explain of an unknown event: %v", err)
	}
}

func TestTestDelivery(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, status(http.StatusTeapot))
	sub := h.subscribe(rc.URL)
	res, err := h.inspector.Test(t.Context(), h.company, sub.UUID)
	if err != nil || res.Delivered || res.Attempt.StatusCode != http.StatusTeapot || res.Attempt.Error != string(attempt.ClassHTTP4xx) {
		t.Errorf("test = %+v, %v", res, err)
	}
	if rc.ids()[res.EventID] != 1 {
		t.Error("the test was not received under its id")
	}
}

// A test delivery shows whether an endpoint behind an open breaker works again.
func TestTestDeliveryIgnoresTheBreaker(t *testing.T) {
	t.Parallel()
	h := setup(t)
	entered, gate := make(chan struct{}), make(chan struct{})
	sub := h.subscribe(receive(t, func(int, http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-gate
	}).URL)
	for { // until the breaker is open
		place := &endpoint.Delivery{Company: h.company, Endpoint: sub.UUID}
		if decision := h.admission.Enter(place); decision == endpoint.OverflowBreaker || decision == endpoint.OverflowQueue {
			break
		}
		h.admission.Learn(place, endpoint.Result{Unreachable: true})
		h.admission.Leave(place, endpoint.Result{Unreachable: true})
	}
	done := make(chan error, 1)
	go func() {
		res, err := h.inspector.Test(t.Context(), h.company, sub.UUID)
		if err == nil && !res.Delivered {
			err = fmt.Errorf("not delivered: %+v", res)
		}
		done <- err
	}()
	<-entered
	if _, err := h.inspector.Test(t.Context(), h.company, sub.UUID); !errors.Is(err, inspect.ErrTesting) {
		t.Errorf("a second test at the same time: %v", err)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDrainTimeIsSplit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ timeout, attempts, last time.Duration }{
		{30 * time.Minute, 30*time.Minute - lastRecords, 30 * time.Minute},
		{3 * time.Second, 2 * time.Second, 3 * time.Second},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
		end, _ := ctx.Deadline()
		attempts, last, release := splitDrain(ctx)
		forAttempts, _ := attempts.Deadline()
		forAll, _ := last.Deadline()
		if got, want := end.Sub(forAttempts).Round(time.Second), c.timeout-c.attempts; got != want {
			t.Errorf("of %s, attempts end %s before the end; want %s", c.timeout, got, want)
		}
		if forAll != end {
			t.Errorf("of %s, all ends at %s, want %s", c.timeout, forAll, end)
		}
		release()
		cancel()
	}
	ended, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	attempts, last, release := splitDrain(ended)
	defer release()
	if attempts.Err() == nil || last.Err() != nil {
		t.Errorf("after the end: attempts %v, records %v", attempts.Err(), last.Err())
	}
}
