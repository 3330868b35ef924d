package dispatcher

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"spendhook/internal/redistest"
)

func TestRoomLetsNobodyInWhileItIsFull(t *testing.T) {
	t.Parallel()
	r := &room{limit: 2}
	r.add(2)
	stop := make(chan struct{})
	close(stop)
	if err := r.enter(stop); !errors.Is(err, errStopping) {
		t.Errorf("a full room: %v", err)
	}
	var inside sync.WaitGroup
	for range 10 {
		inside.Go(func() {
			if err := r.enter(t.Context().Done()); err != nil {
				t.Error(err)
			}
		})
	}
	r.add(1)
	if r.full() == nil {
		t.Error("there is room")
	}
	r.add(-2)
	inside.Wait()
	if err := r.enter(stop); err != nil {
		t.Errorf("there is room, and yet: %v", err)
	}
}

// In an overload work waits in its queue, however much there is: it is neither
// taken and held here nor put off, which would cost more than to deliver it.
func TestAnOverloadWaitsInTheQueue(t *testing.T) {
	t.Parallel()
	const slots, tasks = 4, 100
	h := build(t, redistest.New(t), func(o *Options) {
		o.Concurrency, o.EndpointConcurrency, o.MaxWait = slots, slots, time.Hour
		o.Sender = testSender(time.Hour)
	})
	gate := make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate })
	h.subscribe(rc.URL)
	h.start()
	for range tasks {
		h.emit(1)
	}
	full := func() bool { return h.room.full() != nil }
	eventually(t, full, "as much is taken as there is room for")
	noted, err := h.Store.noted(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	workers := 4 // that had looked whether there is room when there was
	if n := len(noted); n > slots+slots/2+workers {
		t.Errorf("%d of %d events are taken", n, tasks)
	}
	close(gate)
	h.settled()
	if n := rc.count(); n != tasks {
		t.Errorf("%d were sent, want %d", n, tasks)
	}
	if n := testutil.ToFloat64(h.metrics.postponed); n > 0 {
		t.Errorf("%v deliveries were put off", n)
	}
}
