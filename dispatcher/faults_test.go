package dispatcher

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// load emits events through a publisher until stopped, and remembers those that
// were accepted.
type load struct {
	h        *house
	gate     sync.RWMutex // held for reading while an event is sent
	mu       sync.Mutex
	accepted []string
	end      chan struct{}
	done     sync.WaitGroup
}

func (h *house) load(emitters int) *load {
	l := &load{h: h, end: make(chan struct{})}
	for e := range emitters {
		l.done.Go(func() { l.emit("load-" + strconv.Itoa(e) + "-") })
	}
	return l
}

// emit sends one event after the other, each again until it is answered.
func (l *load) emit(prefix string) {
	for n := 0; ; n++ {
		e := events.Event{
			ID: prefix + strconv.Itoa(n), CompanyUUID: l.h.company, Type: "PAYMENT_PAID",
			Timestamp: time.UnixMilli(time.Now().UnixMilli()), Metadata: []byte(`{}`),
		}
		for {
			select {
			case <-l.end:
				return
			default:
			}
			if l.send(e) {
				break
			}
		}
	}
}

func (l *load) send(e events.Event) bool {
	l.gate.RLock()
	defer l.gate.RUnlock()
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	results, err := l.h.publisher.Accept(ctx, []events.Event{e})
	if err != nil {
		if !errors.Is(err, events.ErrUnavailable) {
			l.h.t.Errorf("accept: %v", err)
		}
		return false
	}
	if results[0].Err != nil {
		l.h.t.Errorf("accept %s: %v", e.ID, results[0].Err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted = append(l.accepted, e.ID)
	return true
}

// between acts while no event is sent and no task waits in the queue.
func (l *load) between(act func()) {
	l.h.t.Helper()
	l.gate.Lock()
	defer l.gate.Unlock()
	eventually(l.h.t, func() bool {
		fresh, again := l.h.queued()
		return fresh+again == 0
	}, "no task waits")
	act()
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.accepted)
}

// grow waits until n more events were accepted.
func (l *load) grow(n int) {
	l.h.t.Helper()
	from := l.count()
	eventually(l.h.t, func() bool { return l.count() >= from+n }, "events are accepted")
}

// account stops the load and holds every accepted event against what arrived:
// it is the end that every fault must come to.
func (l *load) account(rc *inbox, sub subscribers.Subscriber) {
	h := l.h
	h.t.Helper()
	close(l.end)
	l.done.Wait()
	eventually(h.t, func() bool {
		got := rc.ids()
		for _, id := range l.accepted {
			if got[id] == 0 {
				return false
			}
		}
		return true
	}, "every accepted event arrives")
	h.settled()
	for _, id := range l.accepted {
		if d := h.delivery(id, sub); d.Status != StatusDelivered {
			h.t.Errorf("%s is %s", id, d.Status)
		}
	}
}

// unsteady fails one request in five.
func unsteady(_ int, w http.ResponseWriter, _ *http.Request) {
	if rand.IntN(5) == 0 {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func patient(o *Options) {
	for range 20 { // so that chance never makes a dead letter
		o.Policy.Schedule = append(o.Policy.Schedule, 20*time.Millisecond)
	}
}

func TestNothingIsLostWhenRedisIsKilled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	h := build(t, server.Client(), patient)
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(8)
	for range 3 {
		l.grow(200)
		server.Restart()
	}
	l.grow(200)
	l.account(rc, sub)
}

func TestNothingIsLostWhenRedisStalls(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	h := build(t, server.Client(), patient)
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(8)
	l.grow(200)
	server.Pause()
	stalled, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	<-stalled.Done()
	server.Resume()
	l.grow(200)
	l.account(rc, sub)
}

func TestNothingIsLostWhenTheQueueIsDeletedUnderLoad(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, patient)
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(8)
	for range 3 {
		l.grow(200)
		deleteQueue(t, client)
	}
	l.account(rc, sub)
}

func TestTwoReplicasShareTheWork(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, patient)
	other := build(t, client, patient)
	other.company = h.company
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	var wg sync.WaitGroup // both at once on an empty Redis
	for _, each := range []*house{h, other} {
		wg.Go(each.start)
	}
	wg.Wait()
	l := h.load(8)
	l.grow(500)
	other.stop(5 * time.Second)
	l.grow(200)
	l.account(rc, sub)
	for id, n := range rc.ids() {
		if d := h.delivery(id, sub); d.AttemptCount != n {
			t.Errorf("%s: %d attempts counted, %d received", id, d.AttemptCount, n)
		}
	}
}

func TestEverythingWorksInACluster(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, s := range redistest.Cluster(t, 3) {
		addrs = append(addrs, s.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = client.Close() })
	h := build(t, client, patient)
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(4)
	l.grow(300)
	l.account(rc, sub)
	if got := h.all(DeliveryFilter{Size: 100}); len(got) != len(l.accepted) {
		t.Errorf("%d listed of %d", len(got), len(l.accepted))
	}
	ref := events.Ref{Company: h.company, ID: l.accepted[0]}
	if _, err := h.Replay(t.Context(), ref, nil); err != nil {
		t.Error(err)
	}
	h.settled()
}

// What was accepted while the queue refused tasks is delivered once it takes
// them again.
func TestWhatTheQueueRefusedIsTriedAgain(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	h.start()
	const pendingList = "asynq:{spendhook0}:pending"
	if err := client.Set(t.Context(), pendingList, "not a list", 0).Err(); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(150)
	if err := client.Del(t.Context(), pendingList).Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		h.reaches(id, sub, StatusDelivered)
	}
}

// However slow the recorder is, what is sent but not recorded stays bounded.
func TestUnrecordedAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	h := build(t, server.Client(), patient)
	rc := receive(t, nil)
	h.subscribe(rc.URL)
	h.emit(3000)
	first := make(chan struct{})
	var once sync.Once
	rc.answer = func(int, http.ResponseWriter, *http.Request) { once.Do(func() { server.Pause(); close(first) }) }
	h.start()
	<-first
	stalled, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	<-stalled.Done()
	if n := rc.count(); n > recorderQueue+recorderBatch+2*maxPerEndpoint {
		t.Errorf("%d were sent while nothing could be recorded", n)
	}
	server.Resume()
	eventually(t, func() bool { return len(rc.ids()) == 3000 }, "all arrive")
	h.settled()
}

// steps is a clock that a test sets forward and back.
type steps struct{ by atomic.Int64 }

func (s *steps) now() time.Time { return time.Now().Add(time.Duration(s.by.Load())) }

// The clock is set forward by an hour, back, and forward again, under load:
// nothing is lost, and nothing is sent that was settled. While the clock is back,
// what was given a time in the hour that is gone waits for it. asynq has a clock of
// its own, which stands in this test: its tasks must not seem an hour newer.
func TestTheClockIsStepped(t *testing.T) {
	t.Parallel()
	clock := &steps{}
	h := build(t, redistest.New(t), func(o *Options) {
		patient(o)
		o.Now = clock.now
	})
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(8)
	l.grow(200)
	for _, to := range []time.Duration{time.Hour, 0, time.Hour} {
		l.between(func() { clock.by.Store(int64(to)) })
		l.grow(200)
	}
	l.account(rc, sub)
	for id, n := range rc.ids() {
		if d := h.delivery(id, sub); d.AttemptCount != n {
			t.Errorf("%s: %d attempts counted, %d received", id, d.AttemptCount, n)
		}
	}
}
