package dispatcher

import (
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
	r.enter(2, nil)
	if r.tryEnter(1) == nil {
		t.Fatal("a full room took another")
	}
	var inside sync.WaitGroup
	for range 10 {
		inside.Go(func() {
			r.enter(1, nil)
			r.leave()
		})
	}
	r.leave()
	inside.Wait()
	r.enter(3, nil) // so it is no bound for one task
	stop := make(chan struct{})
	close(stop)
	r.enter(5, stop)
	if r.waiting != 9 {
		t.Errorf("%d wait, want 9", r.waiting)
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
	eventually(t, func() bool {
		h.room.mu.Lock()
		defer h.room.mu.Unlock()
		return h.room.free != nil
	}, "a worker waits for room")
	noted, err := h.Store.noted(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(noted); n > slots+slots/2+workers { // each of them with a task that waits for room
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
