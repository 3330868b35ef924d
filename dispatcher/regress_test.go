package dispatcher

import (
	"errors"
	"net/http"
	"spendhook/internal/partition"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// told counts the company's events of a type.
func (h *house) told(kind string) int {
	h.t.Helper()
	n, cursor := 0, ""
	for {
		p, err := h.Events.List(h.t.Context(), events.Filter{Company: &h.company, Type: kind, Size: 100, Cursor: cursor})
		if err != nil {
			h.t.Fatal(err)
		}
		n += len(p.Items)
		if cursor = p.Next; cursor == "" {
			return n
		}
	}
}

func TestEachFailingAndRecoveryIsTold(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var bad atomic.Bool
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		if bad.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	sub := h.subscribe(rc.URL)
	for round := 1; round <= 2; round++ {
		bad.Store(true)
		h.reaches(h.emit(1)[0], sub, StatusDead)
		eventually(t, func() bool { return h.told(events.SubscriberFailing) == round }, "failing is told")
		bad.Store(false)
		h.reaches(h.emit(1)[0], sub, StatusDelivered)
		eventually(t, func() bool { return h.told(events.SubscriberRecovered) == round }, "recovery is told")
	}
}

func mortal(o *Options) { o.Policy.Schedule = nil }

func TestEveryDeathOfManyIsTold(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), mortal)
	h.start()
	h.subscribe(receive(t, status(http.StatusInternalServerError)).URL)
	for range 2 {
		h.emit(1000)
	}
	eventually(t, func() bool { return h.told(events.DeliveryDead) == 2000 }, "every death is told")
}

func TestDeathsDuringAStopAreTold(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), mortal)
	h.start()
	gate := make(chan struct{})
	rc := receive(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		<-gate
		w.WriteHeader(http.StatusInternalServerError)
	})
	h.subscribe(rc.URL)
	h.emit(20)
	eventually(t, func() bool { return rc.count() == 20 }, "all are in flight")
	go func() {
		<-h.intake.Done()
		close(gate)
	}()
	h.stop(5 * time.Second)
	if n := h.told(events.DeliveryDead); n != 20 {
		t.Errorf("%d of 20 deaths were told", n)
	}
}

func TestAnothersSubscriberTellsNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	sub := h.subscribe(receive(t, nil).URL)
	for range 11 { // more than one page looks at
		h.emit(100)
	}
	h.settled()
	spy := uuid.New()
	for partition.Of(spy) != partition.Of(h.company) {
		spy = uuid.New()
	}
	p, err := h.Deliveries(t.Context(), DeliveryFilter{Company: &spy, Subscriber: &sub.UUID})
	if err != nil || len(p.Items) > 0 || p.Next != "" {
		t.Errorf("another company sees %+v, %v", p, err)
	}
}

func TestHeldDeliveriesOfASubscriberMakeOneRelease(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	sub := h.subscribe(receive(t, nil).URL)
	var batch []*outcome
	for i := range 400 {
		r := ref{Ref: events.Ref{Company: h.company, ID: "e" + strconv.Itoa(i)}, Subscriber: sub.UUID}
		batch = append(batch, &outcome{work: work{ref: r, base: &record{Status: StatusPending, Created: 1}}, apply: hold})
	}
	h.recorder.write(t.Context(), batch)
	keys, err := h.client.Keys(t.Context(), "sh:{*}:job:*").Result()
	if err != nil || len(keys) != 1 {
		t.Errorf("%d release jobs, %v", len(keys), err)
	}
}

func TestGoneFromAnOldAddressDisablesNobody(t *testing.T) {
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
	h.update(sub, subscribers.Update{CallbackURL: &now.URL})
	close(gate)
	h.reaches(id, sub, StatusDead)
	h.reaches(h.emit(1)[0], sub, StatusDelivered) // recorded after what the 410 does
}

// What becomes part of a Redis key has the alphabet of event ids.
func TestDeliveryIDsAreCheckedWhole(t *testing.T) {
	t.Parallel()
	company, sub := uuid.New(), uuid.New()
	good := Delivery{EventID: "evt_1-A", SubscriberUUID: sub}
	if r, err := parseDeliveryID(company, good.ID()); err != nil || r.Company != company || r.ID != "evt_1-A" || r.Subscriber != sub {
		t.Errorf("%s: %v, %v", good.ID(), r, err)
	}
	for _, id := range []string{
		"", ".", "e", "e.", "." + sub.String(), "e.x", "a/b." + sub.String(), "a:b." + sub.String(), "{7}." + sub.String(),
		"a\n." + sub.String(), strings.Repeat("e", 129) + "." + sub.String(),
	} {
		if r, err := parseDeliveryID(company, id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v, %v", id, r, err)
		}
	}
}
