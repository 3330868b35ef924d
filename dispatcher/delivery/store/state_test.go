package store

import (
	"errors"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/redistest"
)

const (
	day     = 24 * time.Hour
	forever = time.Duration(-1)
	absent  = time.Duration(-2)
)

// expect checks how an event stands, to the minute.
func (h *harness) expect(t *testing.T, what string, r events.Ref, want standing) {
	t.Helper()
	want.ofPartition = want.ofCompany
	got := h.standing(t, r)
	for _, d := range []*time.Duration{&got.eventFor, &got.deliveriesFor} {
		if *d > 0 {
			*d = d.Round(5 * time.Minute)
		}
	}
	if got != want {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// kept times of a settled event and its deliveries.
const (
	eventKept      = 7*day + 10*time.Minute
	deliveriesKept = 7*day + 15*time.Minute
	deadKept       = 30 * day
)

func (h *harness) refs(r events.Ref, n int) []delivery.Ref {
	all := make([]delivery.Ref, n)
	for i := range all {
		all[i] = delivery.Ref{Ref: r, Subscriber: uuid.New()}
	}
	return all
}

// accepted is one event, which is being matched.
func (h *harness) accepted(t *testing.T, id string) events.Ref {
	t.Helper()
	r := h.accept(t, id)
	if got := h.begin(t, 1); len(got.events) != 1 || got.events[0] != r {
		t.Fatalf("begun %+v, want %s", got, r)
	}
	return r
}

func TestAnEventForNobodySettlesAtOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accept(t, "e")
	h.expect(t, "accepted", e, standing{state: events.Ready, ofCompany: 1, eventFor: forever, deliveriesFor: absent})
	h.begin(t, 1)
	h.expect(t, "read", e, standing{state: events.Ready, ofCompany: 1, eventFor: forever, deliveriesFor: absent})
	h.mustWrite(t, Write{Event: e, Matched: true})
	h.expect(t, "matched", e, standing{state: events.Settled, eventFor: eventKept, deliveriesFor: absent})
}

// The event is MATCHED from the end of its matching to the end of its last
// delivery, whatever the order, and only then expires.
func TestStatesOfAnEvent(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	subs := h.refs(e, 3)
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(subs[0], h.succeed)}})
	h.expect(t, "one delivered while it is matched", e, standing{
		state: events.Ready, ofCompany: 1, eventFor: forever, deliveriesFor: forever, deliveries: 1,
	})
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(subs[1], h.fail), h.first(subs[2], h.queue)}, Matched: true})
	h.expect(t, "matched", e, standing{
		state: events.Matched, ofCompany: 1, eventFor: forever, deliveriesFor: forever, deliveries: 3, live: 2,
	})
	if got := h.begin(t, 5); len(got.deliveries) != 1 || got.deliveries[0] != subs[2] {
		t.Fatalf("begun %+v, want the one that is due", got)
	}
	won := h.again(t, subs[2], h.succeed)
	won.InFlight = true
	h.mustWrite(t, Write{Event: e, Changes: []Change{won}})
	h.expect(t, "two delivered", e, standing{
		state: events.Matched, ofCompany: 1, eventFor: forever, deliveriesFor: forever, deliveries: 3, live: 1,
	})
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.again(t, subs[1], h.drop)}})
	h.expect(t, "the last one cancelled", e, standing{
		state: events.Settled, eventFor: eventKept, deliveriesFor: deliveriesKept, deliveries: 3,
	})
}

func TestReplayOfASettledEvent(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e, other := h.accepted(t, "e"), h.accepted(t, "other")
	sub, added := h.refs(e, 1)[0], h.refs(e, 1)[0]
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(sub, h.succeed)}, Matched: true, Fanout: 1})
	settled := standing{state: events.Settled, ofCompany: 1, eventFor: eventKept, deliveriesFor: eventKept, deliveries: 1}
	h.expect(t, "delivered", e, settled)

	h.mustWrite(t, Write{Event: e, Changes: []Change{h.again(t, sub, h.retry), h.first(added, h.retry)}})
	h.expect(t, "replayed", e, standing{
		state: events.Matched, ofCompany: 2, eventFor: forever, deliveriesFor: forever, deliveries: 2, live: 2,
	})
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.again(t, sub, h.gone), h.again(t, added, h.succeed)}})
	h.expect(t, "dead", e, standing{
		state: events.Settled, ofCompany: 1, eventFor: deadKept, deliveriesFor: deadKept, deliveries: 2,
	})
	h.mustWrite(t, Write{Event: other, Matched: true})
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.again(t, sub, h.retry)}})
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.again(t, sub, h.succeed)}})
	h.expect(t, "recovered, and still kept as a dead letter", e, standing{
		state: events.Settled, eventFor: deadKept, deliveriesFor: deadKept, deliveries: 2,
	})
}

// A delivery is retried until its schedule is used up. The event stays MATCHED until then.
func TestDeliveryIsRetriedUntilItsScheduleIsUsedUp(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	sub := h.refs(e, 1)[0]
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(sub, h.fail)}, Matched: true})
	for range 2 {
		h.expect(t, "retrying", e, standing{
			state: events.Matched, ofCompany: 1, eventFor: forever, deliveriesFor: forever, deliveries: 1, live: 1,
		})
		h.mustWrite(t, Write{Event: e, Changes: []Change{h.again(t, sub, h.fail)}})
	}
	h.expect(t, "dead", e, standing{state: events.Settled, eventFor: deadKept, deliveriesFor: deadKept, deliveries: 1})
	if rec := h.kept(t, sub); rec.Status != delivery.StatusDead || len(rec.Attempts) != 3 || rec.Attempts[1].ResponseBody != nil || string(rec.Attempts[2].ResponseBody) != "no" {
		t.Errorf("kept %+v", rec)
	}
}

func TestOnlyTheAttemptInFlightChangesItsDelivery(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	sub := h.refs(e, 1)[0]
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(sub, h.queue)}, Matched: true})
	if rec := h.kept(t, sub); rec.Status != delivery.StatusPending {
		t.Errorf("waiting, it is %s", rec.Status)
	}
	h.begin(t, 1)
	if rec := h.kept(t, sub); rec.Status != delivery.StatusDelivering {
		t.Errorf("in flight, it is %s", rec.Status)
	}
	shown, err := h.OfEvent(t.Context(), e)
	if err != nil || len(shown) != 1 || shown[0].Status != delivery.StatusDelivering || shown[0].NextAttemptAt() != nil {
		t.Errorf("in flight, it is shown as %+v, %v", shown, err)
	}
	guarded := h.again(t, sub, h.retry)
	guarded.Guarded = true
	if f := h.record(t, Write{Event: e, Changes: []Change{guarded}})[0]; f == nil || !f.InFlight {
		t.Errorf("a guarded change of it is answered %+v", f)
	}
	ended := h.again(t, sub, h.fail)
	ended.InFlight = true
	h.mustWrite(t, Write{Event: e, Changes: []Change{ended}})
	if rec := h.kept(t, sub); rec.Status != delivery.StatusRetrying || rec.Count != 1 {
		t.Errorf("ended, it is %+v", rec)
	}
	guarded = h.again(t, sub, h.retry)
	guarded.Guarded = true
	h.mustWrite(t, Write{Event: e, Changes: []Change{guarded}})
	if got := h.begin(t, 1); len(got.deliveries) != 1 {
		t.Errorf("made due at once, it is not begun: %+v", got)
	}
}

// A write whose answer was lost is written again: nothing changes, and it is
// recognised.
func TestTheSameWriteTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	subs := h.refs(e, 4)
	writes := []Write{
		{Event: e, Changes: []Change{h.first(subs[0], h.succeed), h.first(subs[1], h.fail)}},
		{Event: e, Changes: []Change{h.first(subs[2], h.queue), h.first(subs[3], h.gone)}, Matched: true},
	}
	for _, w := range writes {
		h.mustWrite(t, w)
		before := h.standing(t, e)
		h.mustWrite(t, w)
		after := h.standing(t, e)
		if before.eventFor, before.deliveriesFor = after.eventFor, after.deliveriesFor; before != after {
			t.Errorf("the second time:\n from %+v\n to %+v", before, after)
		}
	}
	other := h.first(subs[0], h.fail) // another replica's outcome
	f := h.record(t, Write{Event: e, Changes: []Change{other}})[0]
	if f == nil || f.InFlight || f.Record.Status != delivery.StatusDelivered || f.Record.Version != 1 {
		t.Errorf("found %+v, want what was written first", f)
	}
	unknown := h.again(t, subs[0], h.retry)
	unknown.Ref = h.refs(e, 1)[0]
	if f := h.record(t, Write{Event: e, Changes: []Change{unknown}})[0]; f == nil || f.Record.Version != 0 {
		t.Errorf("found %+v, want none", f)
	}
}

// An event that is delivered at once is one key with its records. It is read, accepted again and erased as before.
func TestADeliveredEventIsOneKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accepted(t, "e")
	subs := h.refs(e, 2)
	before, err := h.events.Get(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(subs[0], h.succeed), h.first(subs[1], h.succeed)}, Matched: true, Fanout: 2})
	if n := h.client.Exists(t.Context(), deliveriesKey(e)).Val(); n != 0 {
		t.Error("its deliveries have a key of their own")
	}
	all, err := h.OfEvent(t.Context(), e)
	if err != nil || len(all) != 2 || h.stored(t, subs[0]).Status != delivery.StatusDelivered || h.stored(t, subs[1]).Status != delivery.StatusDelivered {
		t.Errorf("deliveries %+v, %v", all, err)
	}
	if rec := h.kept(t, h.refs(e, 1)[0]); rec != nil {
		t.Errorf("a subscriber without a delivery has %+v", rec)
	}
	after, err := h.events.Get(t.Context(), e)
	if err != nil || string(after.Body) != string(before.Body) || after.State != events.Settled {
		t.Errorf("the event is %+v, %v", after, err)
	}
	again := before.Event
	if got, err := h.publisher.Accept(t.Context(), []events.Event{again}); err != nil || got[0].Status != publish.Duplicate {
		t.Errorf("accepted again: %+v, %v", got, err)
	}
	again.Metadata = jsontext.Value(`{"a":1}`)
	if got, err := h.publisher.Accept(t.Context(), []events.Event{again}); err != nil || !errors.Is(got[0].Err, publish.ErrConflict) {
		t.Errorf("accepted again with other content: %+v, %v", got, err)
	}
	if err := h.Erase(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if all, err := h.OfEvent(t.Context(), e); err != nil || len(all) != 0 {
		t.Errorf("erased, it has %+v, %v", all, err)
	}
}

// An event that two owners have matched, in one call or one after the other, settles once and keeps all deliveries.
func TestAnEventMatchedTwiceSettlesOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	e := h.accept(t, "e")
	subs := h.refs(e, 2)
	write := func(sub delivery.Ref) Write {
		return Write{Event: e, Changes: []Change{h.first(sub, h.succeed)}, Matched: true, Fanout: 1}
	}
	both := under(testReplica, []Write{write(subs[0]), write(subs[1])})
	for range 2 {
		recorded, _, err := h.Record(t.Context(), h.now, both)
		if all := found(t, recorded, err); len(all) > 0 {
			t.Fatalf("found %+v", all)
		}
		h.expect(t, "delivered", e, standing{state: events.Settled, eventFor: eventKept, deliveriesFor: deliveriesKept, deliveries: 2})
	}
	earlier := h.accept(t, "earlier")
	h.mustWrite(t, Write{Event: earlier, Changes: []Change{h.first(h.refs(earlier, 1)[0], h.succeed)}})
	h.mustWrite(t, Write{Event: earlier, Changes: []Change{h.first(h.refs(earlier, 1)[0], h.succeed)}, Matched: true, Fanout: 1})
	h.expect(t, "delivered in two calls", earlier, standing{state: events.Settled, eventFor: eventKept, deliveriesFor: deliveriesKept, deliveries: 2})
}

// Deliveries are read while Redis refuses writes, as without enough replicas.
func TestDeliveriesAreReadWhileRedisRefusesWrites(t *testing.T) {
	t.Parallel()
	h := newHarnessOn(t, redistest.Start(t, redistest.Options{}).Client())
	e, waiting := h.accepted(t, "e"), h.accepted(t, "waiting")
	sub, other := h.refs(e, 1)[0], h.refs(waiting, 1)[0]
	h.mustWrite(t, Write{Event: e, Changes: []Change{h.first(sub, h.succeed)}, Matched: true, Fanout: 1})
	h.mustWrite(t, Write{Event: waiting, Changes: []Change{h.first(other, h.queue)}, Matched: true, Fanout: 1})
	if err := h.client.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	for _, r := range []delivery.Ref{sub, other} {
		if all, err := h.OfEvent(t.Context(), r.Ref); err != nil || len(all) != 1 || h.kept(t, r) == nil {
			t.Errorf("%s: %+v, %v", r, all, err)
		}
	}
}
