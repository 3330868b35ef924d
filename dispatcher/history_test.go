package dispatcher

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/feed"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// remembering is a started harness with a history. The test compacts.
type remembering struct{ *harness }

func remember(t *testing.T) *remembering {
	t.Helper()
	h, migrate := withHistory(t, redistest.New(t))
	migrate()
	h.opts.CompactEvery = time.Hour
	h.start()
	return &remembering{h}
}

// move compacts all events once they are in the history.
func (r *remembering) move() {
	r.t.Helper()
	r.settled()
	eventually(r.t, func() bool {
		_, _, err := r.Deliveries.Compact(r.t.Context(), time.Now(), []int{partition.Of(r.company)})
		return err == nil && r.client.ZCard(r.t.Context(), layout.IndexKey(r.company)).Val() == 0
	}, "all are compacted")
}

func (r *remembering) read(sub subscribers.Subscriber, limit int) []feed.Item {
	r.t.Helper()
	items, forgotten := r.feedOf(feed.Request{Company: r.company, Subscriber: sub.UUID, Limit: limit})
	if forgotten > 0 {
		r.t.Errorf("%d are forgotten", forgotten)
	}
	return items
}

// The feed, the explanation of an event and the request of a delivery are as before the event was compacted.
func TestTheHistoryHasTheContentOfCompactedEvents(t *testing.T) {
	t.Parallel()
	r := remember(t)
	sub := r.subscribeTo(r.company, receive(t, nil).URL, "A")
	r.update(sub, subscribers.Settings{Filter: new(`decimal(metadata.amount) >= decimal("3")`)})
	for i := range 60 { // more than are read from an archive at a time
		r.emitWith(fmt.Sprintf("e%02d", i), string("AB"[i%2]), strconv.Itoa(i))
	}
	r.settled()
	explain := func(id string) string {
		list, err := r.inspector.Explain(t.Context(), events.Ref{Company: r.company, ID: id})
		if err != nil || len(list) != 1 || list[0].Delivery == nil {
			t.Errorf("%v, %v", list, err)
			return ""
		}
		return fmt.Sprint(list[0].Verdict, *list[0].Delivery)
	}
	sent := func(id string) string {
		request, err := r.inspector.Sent(t.Context(), r.company, id+"."+sub.UUID.String())
		return fmt.Sprint(request, err)
	}
	items, explained, requested := r.read(sub, 100), explain("e04"), sent("e04")
	if len(items) != 28 || items[0].ID != "e04" {
		t.Fatalf("%d items", len(items))
	}
	r.move()
	for _, limit := range []int{1, 7, 1000} {
		if after := r.read(sub, limit); fmt.Sprint(after) != fmt.Sprint(items) {
			t.Errorf("feed\n%v\nwas\n%v", after, items)
		}
	}
	if got := explain("e04"); got != explained {
		t.Errorf("explained as %s, was %s", got, explained)
	}
	if got := sent("e04"); got != requested {
		t.Errorf("sent as %s, was %s", got, requested)
	}
}

// A job finds archived events and what became of them, and repeats their deliveries.
func TestJobsFindArchivedEvents(t *testing.T) {
	t.Parallel()
	r := remember(t)
	one, two := receive(t, nil), receive(t, nil)
	served := r.subscribeTo(r.company, one.URL, "A")
	missed := r.subscribeTo(r.company, two.URL, "B")
	ids := r.emitType("A", 30)
	r.move()
	r.update(missed, subscribers.Settings{Events: new([]string{"A"})})
	since := time.Now().Add(-time.Hour)
	if job := r.recover(redelivery.RecoverRequest{Company: r.company, Subscriber: served.UUID, Since: since}); job.Changed != 0 || job.Examined != 30 {
		t.Errorf("recover what was delivered: %+v", job)
	}
	if job := r.recover(redelivery.RecoverRequest{Company: r.company, Subscriber: missed.UUID, Since: since}); job.Changed != 30 {
		t.Errorf("recover what was not: %+v", job)
	}
	again := []delivery.Status{delivery.StatusDelivered}
	if job := r.recover(redelivery.RecoverRequest{Company: r.company, Subscriber: served.UUID, Since: since, Statuses: again}); job.Changed != 30 {
		t.Errorf("deliver again: %+v", job)
	}
	r.settled()
	if one.count() != 60 || two.count() != 30 {
		t.Errorf("%d and %d were received", one.count(), two.count())
	}
	r.move()
	if _, err := r.Redelivery.Replay(t.Context(), events.Ref{Company: r.company, ID: ids[0]}, nil); err != nil {
		t.Error(err)
	}
	if _, err := r.Redelivery.Retry(t.Context(), r.company, ids[1]+"."+served.UUID.String()); err != nil {
		t.Error(err)
	}
	r.settled()
	if one.count() != 62 || two.count() != 31 {
		t.Errorf("%d and %d were received", one.count(), two.count())
	}
}
