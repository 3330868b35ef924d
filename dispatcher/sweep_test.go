package dispatcher

import (
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/redistest"
)

// quickly makes a look of the test's own suspect what was handed out a moment ago.
func quickly(o *Options) {
	o.LostAfter = 500 * time.Millisecond
	o.SweepEvery = time.Hour // but for the first: the test sweeps
}

// age lets all that is there become older than LostAfter.
func (h *house) age() {
	h.t.Helper()
	began := time.Now()
	eventually(h.t, func() bool { return time.Since(began) > h.LostAfter }, "time passes")
}

func (h *house) look() {
	h.t.Helper()
	h.age()
	if err := h.sweep(h.t.Context(), false); err != nil {
		h.t.Fatal(err)
	}
}

// queued counts the tasks that wait, of new events and of what is handed out again.
func (h *house) queued() (fresh, again int) {
	h.t.Helper()
	states, err := h.Queue.states()
	if err != nil {
		h.t.Fatal(err)
	}
	return states[0].pending, states[h.Queue.again()].pending
}

func TestBacklogIsNotTakenForLost(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), quickly)
	h.emit(10)
	for range 3 {
		h.look()
	}
	if fresh, again := h.queued(); fresh != 1 || again != 0 {
		t.Errorf("%d and %d tasks are queued, want the one of the emit", fresh, again)
	}
}

func TestLostWorkIsHandedOutAtTheSecondLook(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, quickly)
	h.emit(10)
	deleteQueue(t, client)
	for look, want := range []int{0, 1, 1, 1} { // once handed out again, it waits in the queue
		h.look()
		if fresh, again := h.queued(); fresh != 0 || again != want {
			t.Errorf("after look %d: %d and %d tasks are queued, want 0 and %d", look+1, fresh, again, want)
		}
	}
}

func TestWhatIsHandedOutAgainDoesNotWaitBehindNewEvents(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	for _, name := range h.Queue.names[:h.Queue.again()] { // as if they were endless
		if err := client.Set(t.Context(), "asynq:{"+name+"}:paused", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	sub := h.subscribe(receive(t, nil).URL)
	h.start()
	id := h.emit(1)[0]
	if _, err := h.Store.giveBack(t.Context(), time.Now(), []string{events.Ref{Company: h.company, ID: id}.String()}); err != nil {
		t.Fatal(err)
	}
	h.reaches(id, sub, StatusDelivered)
}

func TestWorkOfTheFutureIsFoundOnceTheQueueIsEmpty(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, quickly)
	id := h.emit(1)[0]
	deleteQueue(t, client)
	key, ref := events.OpenKey(events.Partition(h.company)), events.Ref{Company: h.company, ID: id}.String()
	ahead := float64(time.Now().Add(time.Hour).UnixMilli())
	if err := client.ZAdd(t.Context(), key, redis.Z{Score: ahead, Member: ref}).Err(); err != nil {
		t.Fatal(err)
	}
	h.look()
	h.look()
	if fresh, again := h.queued(); fresh != 0 || again != 1 {
		t.Errorf("%d and %d tasks are queued, want 0 and 1", fresh, again)
	}
}

func TestWorkInFlightIsNotTakenForLost(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), quickly)
	gate := make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate })
	h.subscribe(rc.URL)
	h.start()
	h.emit(20)
	eventually(t, func() bool { return rc.count() == 20 }, "all are in flight")
	h.age()
	states, err := h.Queue.states()
	if err != nil {
		t.Fatal(err)
	}
	if found, err := h.suspect(t.Context(), states); err != nil || len(found) > 0 {
		t.Errorf("suspects: %v, %v", found, err)
	}
	close(gate)
	h.settled()
	if n := rc.count(); n != 20 {
		t.Errorf("%d were sent, want 20", n)
	}
}

// A damaged event must neither hold up the others of its task nor vanish.
func TestDamagedEventIsSetAside(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	ids := h.emit(3)
	bad := events.Ref{Company: h.company, ID: ids[1]}
	if err := client.Set(t.Context(), events.EventKey(bad), "nonsense", 0).Err(); err != nil {
		t.Fatal(err)
	}
	h.recent.take([]events.Ref{bad}) // so that it is read
	h.start()
	h.reaches(ids[0], sub, StatusDelivered)
	h.reaches(ids[2], sub, StatusDelivered)
	eventually(t, func() bool {
		due, err := client.ZScore(t.Context(), delayedKey(events.Partition(h.company)), bad.String()).Result()
		return err == nil && time.UnixMilli(int64(due)).After(time.Now().Add(aside/2))
	}, "the damaged one waits")
}
