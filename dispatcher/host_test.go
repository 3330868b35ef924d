package dispatcher

import (
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// crowded answers no request until it is released, and notes the most concurrent requests.
type crowded struct {
	mu        sync.Mutex
	now, most int
	release   chan struct{}
}

func (c *crowded) answer(_ int, _ http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	select {
	case <-c.release:
	case <-r.Context().Done():
	}
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
}

func (c *crowded) seen() (now, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.most
}

// The attempts of a company in flight to one host are limited, however many subscribers it
// has there. Its deliveries to other hosts and other companies' deliveries do not wait.
func TestAttemptsToOneHostAreLimited(t *testing.T) {
	t.Parallel()
	const places, subscribersThere = 5, 12
	h := build(t, redistest.New(t), func(o *Options) {
		noTimeout(o)
		o.EndpointConcurrency, o.HostConcurrency = 2, places
	})
	h.start()
	crowd := &crowded{release: make(chan struct{})}
	victim, elsewhere := receive(t, crowd.answer), receive(t, nil)
	letGo := sync.OnceFunc(func() { close(crowd.release) })
	t.Cleanup(letGo)
	var there []subscribers.Subscriber
	for i := range subscribersThere {
		there = append(there, h.subscribe(victim.URL+"/"+strconv.Itoa(i)))
	}
	well := h.subscribe(elsewhere.URL)
	ids := h.emit(2)
	h.reachAll(ids, well, delivery.StatusDelivered)
	eventually(t, func() bool { now, _ := crowd.seen(); return now == places }, "the places are taken")
	eventually(t, func() bool { // deliveries wait in memory until the wait for the host is long
		ids = append(ids, h.emit(1)...)
		return h.anyHostBusy(ids, there)
	}, "a delivery says that it waits for its host")
	h.reachAll(ids, well, delivery.StatusDelivered)

	// Another company at the same host has places of its own.
	crowd.mu.Lock()
	crowd.most = 0
	crowd.mu.Unlock()
	guest := h.subscribeTo(uuid.New(), victim.URL, "PAYMENT_PAID")
	guests := h.emitOf(guest.CompanyUUID, 2)
	eventually(t, func() bool { now, _ := crowd.seen(); return now == places+2 }, "another company is served at the host")

	letGo()
	for _, sub := range there {
		h.reachAll(ids, sub, delivery.StatusDelivered)
	}
	h.reachAll(guests, guest, delivery.StatusDelivered)
	h.settled()
	if _, most := crowd.seen(); most > places+2 {
		t.Errorf("%d attempts at once", most)
	}
	if n := victim.count(); n != subscribersThere*len(ids)+2 {
		t.Errorf("%d attempts for %d deliveries", n, subscribersThere*len(ids)+2)
	}
}

// anyHostBusy reports whether a delivery waits for a place of its host.
func (h *harness) anyHostBusy(ids []string, subs []subscribers.Subscriber) bool {
	for _, sub := range subs {
		for _, id := range ids {
			d, err := h.Deliveries.Delivery(h.t.Context(), sub.CompanyUUID, id+"."+sub.UUID.String())
			if err == nil && d.Reason == delivery.ReasonHostBusy {
				return true
			}
		}
	}
	return false
}

// A delivery that must not overtake others begins as soon as its host has a place, however long it has waited for that.
func TestAnOrderedDeliveryWaitsForItsHost(t *testing.T) {
	t.Parallel()
	for range 5 { // on a busy machine Redis may answer too late once
		if abortedAtAFullHost(t) == 0 {
			return
		}
	}
	t.Error("the attempt is aborted each time")
}

// abortedAtAFullHost returns how many attempts are aborted when an ordered delivery has waited for long.
func abortedAtAFullHost(t *testing.T) float64 {
	t.Helper()
	h := build(t, redistest.New(t), func(o *Options) {
		noTimeout(o)
		o.HostConcurrency = 1
	})
	h.start()
	crowd := &crowded{release: make(chan struct{})}
	r := receive(t, crowd.answer)
	letGo := sync.OnceFunc(func() { close(crowd.release) })
	t.Cleanup(letGo)
	first, ordered := h.subscribe(r.URL+"/first"), h.subscribe(r.URL+"/ordered")
	h.update(ordered, subscribers.Settings{Ordered: new(true)})
	ids := h.emit(1)
	eventually(t, func() bool { now, _ := crowd.seen(); return now == 1 }, "the place of the host is taken")
	marks := partition.Key(h.company, "ef:"+h.company.String()+"/"+ordered.UUID.String())
	eventually(t, func() bool { return h.client.HExists(t.Context(), marks, ids[0]).Val() }, "the ordered delivery is in flight")
	marked := time.Now()
	eventually(t, func() bool { return time.Since(marked) > workqueue.BeginWithin }, "the delivery is late")
	letGo()
	h.reachAll(ids, first, delivery.StatusDelivered)
	h.reachAll(ids, ordered, delivery.StatusDelivered)
	h.settled()
	return testutil.ToFloat64(h.metrics.attempts.WithLabelValues(string(attempt.ClassAborted)))
}
