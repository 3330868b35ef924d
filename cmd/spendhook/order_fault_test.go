//go:build faults

package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// orderedEndpoint fails some attempts. It checks that deliveries come one at a time and in
// order. The last delivery may be repeated, since a killed replica may have lost the answer.
type orderedEndpoint struct {
	tb testing.TB

	mu       sync.Mutex
	inFlight int
	done     int // the number of the last one that was answered with success
	repeats  int
	taken    map[string]bool // ids
}

// ServeHTTP answers a delivery.
func (o *orderedEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(r.Header.Get("webhook-sequence"))
	if err != nil {
		o.tb.Errorf("number: %v", err)
	}
	o.begin(number)
	pause.For(r.Context(), rand.N(4*time.Millisecond)) // so that two at a time would meet
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inFlight--
	switch {
	case r.Context().Err() != nil: // its replica was killed
	case rand.IntN(20) == 0:
		w.WriteHeader(http.StatusInternalServerError)
	default:
		o.done = max(o.done, number)
		o.taken[r.Header.Get("webhook-id")] = true
	}
}

func (o *orderedEndpoint) begin(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.inFlight++; o.inFlight > 1 {
		o.tb.Errorf("%d attempts at a time", o.inFlight)
	}
	switch {
	case number == o.done:
		o.repeats++
	case o.done > 0 && number != o.done+1:
		o.tb.Errorf("event %d came after %d", number, o.done)
	}
}

func (o *orderedEndpoint) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.taken)
}

// An ordered subscriber gets its deliveries one at a time and in the order of their
// numbers, while each of two replicas is killed again and again under load.
func TestOrderUnderKills(t *testing.T) {
	t.Parallel()
	const settings = "delivery: {attempt_timeout: 1s, connect_timeout: 500ms, schedule: [100ms, 100ms, 100ms, 100ms, 100ms, 100ms, 100ms]}\n" + sharedKey
	server := redistest.Start(t, redistest.Options{AOF: true})
	installations := []installation{newInstallation(t, server.URL(), settings), newInstallation(t, server.URL(), settings)}
	tr := newTrial(t, server.Client(), installations...)
	o := &orderedEndpoint{tb: t, taken: map[string]bool{}}
	receiver := httptest.NewServer(o)
	defer receiver.Close()
	body := fmt.Sprintf(`{"name":"in order","callbackUrl":%q,"events":["PAYMENT_PAID"],"ordered":true}`, receiver.URL)
	if status, _, answer := tr.daemons[0].do(t, http.MethodPost, "/api/v1/subscribers", body); status != http.StatusCreated {
		t.Fatalf("subscribe: %d %s", status, answer)
	}
	tr.load.pause() // one at a time is slower than they come
	before := tr.load.ids()
	for n := range kills {
		tr.load.resume()
		tr.grow(1 + rand.IntN(40))
		tr.load.pause()
		came := o.count()
		eventually(t, deliveryPatience, "deliveries go on", func() bool { return o.count() > came })
		pause.For(t.Context(), rand.N(20*time.Millisecond))
		tr.daemons[n%2].signal(syscall.SIGKILL)
		tr.daemons[n%2].ended(t)
		tr.replace(n%2, installations[n%2].startChild(t))
	}
	tr.load.resume()
	tr.load.stop()
	accepted := tr.load.ids()
	eventually(t, deliveryPatience, "all is delivered in order", func() bool {
		return len(tr.daemons[0].deliveries(t, "PENDING", "DELIVERING", "RETRYING")) == 0 && tr.pending() == 0
	})
	missed := 0
	for id := range accepted {
		if _, old := before[id]; !old && !o.taken[id] {
			missed++
		}
	}
	t.Logf("%d kills: %d deliveries in order, %d repeats of the last one", kills, o.count(), o.repeats)
	if missed > 0 {
		t.Errorf("%d deliveries are missing", missed)
	}
	for _, d := range tr.daemons {
		d.stop(t)
	}
}
