package dispatcher

import (
	"net/http"
	"spendhook/internal/partition"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/dispatcher/webhook"
	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

func TestOlderTaskOfADeliveryDoesNothing(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	r := ref{Ref: events.Ref{Company: h.company, ID: "e"}, Subscriber: uuid.New()}
	first := time.UnixMilli(time.Now().UnixMilli())
	h.write(r.Subscriber, []string{r.ID}, first, func(rec *record) { rec.Due = first.UnixMilli() })
	second := first.Add(time.Second)
	for _, at := range []time.Time{first, second} {
		if refs, err := h.Store.claim(t.Context(), at, 10); err != nil || len(refs) != 1 {
			t.Fatalf("claimed %v, %v", refs, err)
		}
		if _, err := h.Store.giveBack(t.Context(), second, []string{r.String()}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Store.claim(t.Context(), second, 10); err != nil {
		t.Fatal(err)
	}
	if begun, err := h.Store.begin(t.Context(), h.Replica, "old", first.UnixMilli(), []ref{r}); err != nil || len(begun) != 0 {
		t.Errorf("the older task began %+v, %v", begun, err)
	}
	begun, err := h.Store.begin(t.Context(), h.Replica, "new", second.UnixMilli(), []ref{r})
	if err != nil || len(begun) != 1 || begun[0].rec.Status != StatusDelivering {
		t.Fatalf("the newer task began %+v, %v", begun, err)
	}
}

func TestSettledDeliveryIsNotBegun(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	now := time.UnixMilli(time.Now().UnixMilli())
	r := ref{Ref: events.Ref{Company: h.company, ID: "e"}, Subscriber: uuid.New()}
	h.write(r.Subscriber, []string{r.ID}, now, func(rec *record) { rec.Due = now.UnixMilli() })
	if _, err := h.Store.claim(t.Context(), now, 10); err != nil {
		t.Fatal(err)
	}
	recs, err := h.Store.get(t.Context(), []ref{r})
	if err != nil {
		t.Fatal(err)
	}
	done := cancel(*recs[0], now)
	if _, err := h.Store.record(t.Context(), now, []write{writeOf(r, recs[0], &done)}, h.Replica, nil); err != nil {
		t.Fatal(err)
	}
	if begun, err := h.Store.begin(t.Context(), h.Replica, "t", now.UnixMilli(), []ref{r}); err != nil || len(begun) != 0 {
		t.Errorf("began %+v, %v", begun, err)
	}
}

func TestChangeOfAnOlderVersionIsRefused(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	now := time.Now()
	r := ref{Ref: events.Ref{Company: h.company, ID: "e"}, Subscriber: uuid.New()}
	h.write(r.Subscriber, []string{r.ID}, now, dead)
	late := restart(record{EventType: "PAYMENT_PAID", Created: now.UnixMilli()}, ReasonReplay, now)
	found, err := h.Store.record(t.Context(), now, []write{writeOf(r, &record{}, &late)}, h.Replica, nil)
	if err != nil || found[0][0] == nil || found[0][0].Status != StatusDead {
		t.Fatalf("found %+v, %v", found, err)
	}
	if recs, err := h.Store.get(t.Context(), []ref{r}); err != nil || recs[0].Status != StatusDead {
		t.Errorf("record = %+v, %v", recs[0], err)
	}
}

// An event whose dispatch is repeated, its first one having been cut off by a
// crash, goes only to those that have no delivery of it.
func TestRepeatedDispatchSkipsWhoHasADelivery(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	served, missing := receive(t, nil), receive(t, nil)
	first, second := h.subscribe(served.URL), h.subscribe(missing.URL)
	id := h.emit(1)[0]
	h.write(first.UUID, []string{id}, time.Now(), func(r *record) { r.Status = StatusDelivered })
	h.start()
	h.reaches(id, second, StatusDelivered)
	h.settled()
	if served.count() != 0 || missing.count() != 1 {
		t.Errorf("received %d and %d times", served.count(), missing.count())
	}
}

// An outcome that meets a record written meanwhile is applied to that record.
func TestConflictingOutcomeIsRebased(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	var sub subscribers.Subscriber
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		h.write(sub.UUID, []string{"evt-1"}, time.Now(), dead)
		w.WriteHeader(http.StatusOK)
	})
	sub = h.subscribe(rc.URL)
	h.start()
	id := h.emit(1)[0]
	h.reaches(id, sub, StatusDelivered)
	h.settled()
	if g, err := h.Store.gauges(t.Context()); err != nil || g.dead != 0 {
		t.Errorf("%d dead letters counted, %v", g.dead, err)
	}
}

func TestDeliveriesOutliveTheirEventsRetention(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = []time.Duration{time.Hour} })
	rc := receive(t, status(http.StatusInternalServerError))
	sub := h.subscribe(rc.URL)
	h.start()
	id := h.emit(1)[0]
	h.reaches(id, sub, StatusRetrying)
	r := events.Ref{Company: h.company, ID: id}
	for _, key := range []string{events.EventKey(r), deliveriesKey(r)} {
		if ttl := h.client.PTTL(t.Context(), key).Val(); ttl < h.Policy.DeadRetention-time.Minute {
			t.Errorf("%s lives for %s", key, ttl)
		}
	}
}

func TestEveryKeyHasAnEndOrAnOwner(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var failed sync.Map // each event fails once
	rc := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if _, again := failed.LoadOrStore(r.Header.Get(webhook.HeaderID), true); !again {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	sub := h.subscribe(rc.URL)
	for _, id := range h.emit(20) {
		h.reaches(id, sub, StatusDelivered)
	}
	h.settled()
	owned := map[string]bool{ // docs/redis.md says who trims them
		subscribers.CompanyKey(h.company): true, deadKey(partition.Of(h.company)): true,
	}
	keys, err := h.client.Keys(t.Context(), "sh:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		ttl, err := h.client.TTL(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		set := key[len(key)-3:] == ":sc" || key == companyTag(h.company)+"su:"+h.company.String()
		if ttl < 0 && !owned[key] && !set {
			t.Errorf("%s never expires", key)
		}
	}
}

// A write whose answer was lost is tried again, and counts once.
func TestWriteTriedAgainIsRecognised(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	now := time.Now()
	r := ref{Ref: events.Ref{Company: h.company, ID: "e"}, Subscriber: uuid.New()}
	next := decide(record{EventType: "PAYMENT_PAID", Created: now.UnixMilli()}, webhook.Result{StatusCode: 500, Class: webhook.ClassHTTP5xx, StartedAt: now}, h.Policy, now, middle)
	for range 2 {
		found, err := h.Store.record(t.Context(), now, []write{writeOf(r, &record{}, &next)}, h.Replica, nil)
		if err != nil || found[0][0] != nil {
			t.Fatalf("found %+v, %v", found, err)
		}
	}
	recs, err := h.Store.get(t.Context(), []ref{r})
	if err != nil || recs[0].Count != 1 || recs[0].Version != 1 {
		t.Errorf("record = %+v, %v", recs[0], err)
	}
}

// A subscriber may be enabled between an attempt's look at it and the hold that
// follows: the release has then not seen the delivery, and it must not stay held.
func TestHoldThatRacesWithEnablingIsUndone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	id := h.emit(1)[0]
	h.reaches(id, sub, StatusDelivered)
	r := ref{Ref: events.Ref{Company: h.company, ID: id}, Subscriber: sub.UUID}
	recs, err := h.Store.get(t.Context(), []ref{r})
	if err != nil {
		t.Fatal(err)
	}
	h.recorder.in <- &outcome{
		work:  work{ref: r, base: recs[0]},
		apply: hold,
	}
	eventually(t, func() bool { return rc.count() == 2 }, "it is released and delivered")
	h.settled()
}
