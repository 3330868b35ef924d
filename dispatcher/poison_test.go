package dispatcher

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// quarantined lists what was quarantined of the company.
func (h *harness) quarantined() map[string]bool {
	h.t.Helper()
	all, err := h.client.ZRange(h.t.Context(), partition.Key(h.company, "quarantine"), 0, -1).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	out := make(map[string]bool, len(all))
	for _, ref := range all {
		out[ref] = true
	}
	return out
}

// damageEvent overwrites a stored event. repair restores it.
func (h *harness) damageEvent(id, value string) (repair func()) {
	h.t.Helper()
	key := layout.EventKey(events.Ref{Company: h.company, ID: id})
	set := func(value string) (former string) {
		h.t.Helper()
		former, err := h.client.SetArgs(h.t.Context(), key, value, redis.SetArgs{Get: true}).Result()
		if err != nil {
			h.t.Fatal(err)
		}
		return former
	}
	former := set(value)
	return func() { h.t.Helper(); set(former) }
}

// damageDelivery overwrites the record of a delivery. repair restores it.
func (h *harness) damageDelivery(id string, sub uuid.UUID, value string) (repair func()) {
	h.t.Helper()
	key, field := partition.Key(h.company, "d:"+h.company.String()+"/"+id), sub.String()
	former, err := h.client.HGet(h.t.Context(), key, field).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	set := func(value string) {
		h.t.Helper()
		if err := h.client.HSet(h.t.Context(), key, field, value).Err(); err != nil {
			h.t.Fatal(err)
		}
	}
	set(value)
	return func() { h.t.Helper(); set(former) }
}

// A damaged event is quarantined alone: all others are delivered.
func TestDamagedEventsAreQuarantinedAlone(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	ids := h.emit(500)
	bad := map[string]string{}
	for i, value := range []string{"garbage", "", "R", "R" + strings.Repeat("x", 40), "M", "a list"} {
		id := ids[80*i+7]
		bad[id] = value
		h.damageEvent(id, value)
		if value == "a list" {
			key := layout.EventKey(events.Ref{Company: h.company, ID: id})
			h.client.Del(t.Context(), key)
			h.client.RPush(t.Context(), key, value)
		}
	}
	h.start()
	var good []string
	for _, id := range ids {
		if _, damaged := bad[id]; !damaged {
			good = append(good, id)
		}
	}
	h.reachAll(good, sub, delivery.StatusDelivered)
	h.idle()
	found := h.quarantined()
	for id, value := range bad {
		if !found[h.company.String()+"/"+id] {
			t.Errorf("%s, which is %q, was not quarantined", id, value)
		}
	}
	if n := testutil.ToFloat64(h.metrics.quarantined); len(found) != len(bad) || n != float64(len(bad)) {
		t.Errorf("quarantined %v, counted %v", found, n)
	}
	rc.once(t, good)
}

// A damaged delivery is quarantined alone: all others are delivered.
func TestDamagedDeliveriesAreQuarantinedAlone(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	ids := h.emit(500)
	h.write(sub.UUID, ids, time.Now(), due)
	bad := map[string]string{}
	for i, value := range []string{"garbage", "", "P", "P1", "P1|", "P1|{", "Px|{}", "Z1|{}"} {
		id := ids[60*i+7]
		h.damageDelivery(id, sub.UUID, value)
		bad[id] = value
	}
	h.start()
	var good []string
	for _, id := range ids {
		if _, damaged := bad[id]; !damaged {
			good = append(good, id)
		}
	}
	h.reachAll(good, sub, delivery.StatusDelivered)
	h.idle()
	found := h.quarantined()
	for id, value := range bad {
		if !found[h.company.String()+"/"+id+"/"+sub.UUID.String()] {
			t.Errorf("%s, which is %q, was not quarantined", id, value)
		}
	}
	if len(found) != len(bad) {
		t.Errorf("quarantined %v", found)
	}
	rc.once(t, good)
}

// A delivery that is damaged during its attempt is quarantined. The outcomes of other
// deliveries are recorded.
func TestDeliveriesDamagedInFlightAreQuarantinedAlone(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.EndpointConcurrency = 512 })
	gate := make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate })
	sub := h.subscribe(rc.URL)
	ids := h.emit(60)
	h.write(sub.UUID, ids, time.Now(), due)
	h.start()
	eventually(t, func() bool { return rc.count() == 60 }, "all are in flight")
	bad := ids[7:10:10]
	for i, value := range []string{"garbage", "P7|{", "Z1|{}"} {
		h.damageDelivery(bad[i], sub.UUID, value)
	}
	close(gate)
	good := append(ids[:7:7], ids[10:]...)
	h.reachAll(good, sub, delivery.StatusDelivered)
	more := h.emit(20)
	h.reachAll(more, sub, delivery.StatusDelivered)
	h.idle()
	found := h.quarantined()
	for _, id := range bad[:2] { // the third has the version that was expected: it is written again
		if !found[h.company.String()+"/"+id+"/"+sub.UUID.String()] {
			t.Errorf("%s was not quarantined", id)
		}
	}
	rc.once(t, append(good, more...))
}

// A recover job completes although it meets damaged deliveries.
func TestRecoverPassesDamagedDeliveries(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	ids := h.emit(30)
	h.write(sub.UUID, ids[:20], time.Now(), dead)
	h.damageDelivery(ids[3], sub.UUID, "garbage")
	h.start()
	h.reachAll(ids[20:], sub, delivery.StatusDelivered)
	h.enable(sub, false)
	missed := h.emit(10)
	h.idle()
	h.damageEvent(missed[4], "garbage")
	h.enable(sub, true)
	job := h.recover(redelivery.RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Hour)})
	if job.Changed != 20+9 { // a damaged record counts as missed, and is written again
		t.Errorf("changed %d", job.Changed)
	}
	h.idle()
	if _, err := h.Deliveries.List(t.Context(), store.Filter{Company: &h.company}); err != nil {
		t.Errorf("list: %v", err)
	}
	if n := rc.count(); n != 10+20+9 {
		t.Errorf("received %d", n)
	}
}

// An event that is damaged in flight is quarantined when its replica is lost.
func TestDamagedEventsOfALostReplicaAreQuarantined(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	lost := build(t, client, nil)
	sub := lost.subscribe(receive(t, nil).URL)
	ids := lost.emit(20)
	lost.beginAndForget()
	lost.damageEvent(ids[7], "garbage")
	h := build(t, client, func(o *Options) { o.Replica = lost.opts.Replica })
	h.company = lost.company
	h.start()
	h.reachAll(append(ids[:7:7], ids[8:]...), sub, delivery.StatusDelivered)
	h.idle()
	if found := h.quarantined(); len(found) != 1 || !found[h.company.String()+"/"+ids[7]] {
		t.Errorf("quarantined %v", found)
	}
}

// An event is quarantined when its matching was under way at two deaths of the process. The death before
// does not count, at which many events were in flight, nor does the only death in the matching of another event.
func TestAnEventThatEndsItsProcessIsQuarantined(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	lost := build(t, client, nil)
	rc := receive(t, nil)
	sub := lost.subscribe(rc.URL)
	ids := lost.emit(20)
	deadly := ids[7]
	lost.beginAndForget()
	for _, matched := range [][]string{{deadly, ids[8]}, {deadly}} {
		var begun atomic.Int64
		lost.beginAndDie(func(q *workqueue.Queue, batches []workqueue.Batch) {
			for _, e := range batches[0].Events {
				if !e.Suspect {
					t.Errorf("%s is no suspect", e.ID)
				}
				if slices.Contains(matched, e.ID) {
					for range 2 { // the client may send it again
						if _, err := q.BeginSuspect(t.Context(), batches[0].Token, lost.company, e.ID); err != nil {
							t.Error(err)
						}
					}
				}
				begun.Add(1)
			}
		}, func() bool { return begun.Load() == int64(len(ids)) })
	}
	h := build(t, client, func(o *Options) { o.Replica = lost.opts.Replica })
	h.company = lost.company
	h.start()
	h.reachAll(append(ids[:7:7], ids[8:]...), sub, delivery.StatusDelivered)
	h.idle()
	if found := h.quarantined(); len(found) != 1 || !found[h.company.String()+"/"+deadly] {
		t.Errorf("quarantined %v", found)
	}
	h.retryQuarantined()
	h.reaches(deadly, sub, delivery.StatusDelivered)
	h.settled()
	rc.once(t, ids)
	if left := client.HGetAll(t.Context(), partition.Key(h.company, "suspects")).Val(); len(left) > 0 {
		t.Errorf("suspects are left: %v", left)
	}
}

// A delivery is quarantined when its event has a wrong Redis type, and expires when its
// event no longer exists.
func TestAnEventOfAWrongTypeIsNotTakenForExpired(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	ids := h.emit(3)
	h.write(sub.UUID, ids, time.Now(), due)
	for _, id := range ids[:2] {
		key := layout.EventKey(events.Ref{Company: h.company, ID: id})
		if err := h.client.Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
	}
	key := layout.EventKey(events.Ref{Company: h.company, ID: ids[0]})
	if err := h.client.RPush(t.Context(), key, "a list").Err(); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.reaches(ids[2], sub, delivery.StatusDelivered)
	if d := h.reaches(ids[1], sub, delivery.StatusCancelled); d.Reason != delivery.ReasonExpired {
		t.Errorf("the event is gone: %+v", d)
	}
	bad := h.company.String() + "/" + ids[0] + "/" + sub.UUID.String()
	eventually(t, func() bool { return h.quarantined()[bad] }, "it is quarantined")
	if d := h.deliveryOf(ids[0], sub); d.Status != delivery.StatusPending {
		t.Errorf("quarantined: %+v", d)
	}
}

// Dropping an event from the quarantine subtracts its bytes from the company's total.
func TestDroppedEventCountsNoBytes(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	ids := h.emit(2)
	kept := func() (total, hours int64) {
		total, _ = h.client.HGet(t.Context(), partition.Key(h.company, "c:"+h.company.String()), "bytes").Int64()
		for _, text := range h.client.HGetAll(t.Context(), partition.Key(h.company, "cb:"+h.company.String())).Val() {
			n, _ := strconv.ParseInt(text, 10, 64)
			hours += n
		}
		return total, hours
	}
	before, _ := kept()
	key := layout.EventKey(events.Ref{Company: h.company, ID: ids[0]})
	if err := h.client.SetRange(t.Context(), key, 32, "not JSON").Err(); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.reaches(ids[1], sub, delivery.StatusDelivered)
	bad := quarantine.Entry{Company: h.company, EventID: ids[0]}
	eventually(t, func() bool { return h.quarantined()[bad.Member()] }, "it is quarantined")
	size := h.client.StrLen(t.Context(), key).Val()
	if err := h.Redelivery.DropQuarantined(t.Context(), bad); err != nil {
		t.Fatal(err)
	}
	after, hours := kept()
	if freed := before - after; freed < size-32 || after <= 0 || hours != after {
		t.Errorf("of %d bytes %d are left, %d by the hours; the event has %d", before, after, hours, size)
	}
	if err := h.Redelivery.DropQuarantined(t.Context(), bad); !errors.Is(err, quarantine.ErrNotFound) {
		t.Errorf("once more: %v", err)
	}
	if again, _ := kept(); again != after {
		t.Errorf("once more: %d bytes, %d before", again, after)
	}
	h.settled()
}
