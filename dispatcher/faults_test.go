package dispatcher

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/events"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// load emits events through a publisher until it is stopped, and keeps the ids of the
// accepted events.
type load struct {
	h        *harness
	mu       sync.Mutex
	accepted []string
	end      chan struct{}
	done     sync.WaitGroup
}

func (h *harness) load(emitters int) *load {
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

// account stops the load and checks that every accepted event was delivered. Each fault
// test ends with it.
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
		if d := h.deliveryOf(id, sub); d.Status != delivery.StatusDelivered {
			h.t.Errorf("%s is %s", id, d.Status)
		}
	}
}

// counted checks that each attempt that was received was counted, and no other.
func (l *load) counted(rc *inbox, sub subscribers.Subscriber) {
	l.h.t.Helper()
	for id, n := range rc.ids() {
		if d := l.h.deliveryOf(id, sub); d.Count != n {
			l.h.t.Errorf("%s: %d attempts counted, %d received", id, d.Count, n)
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

func TestNothingIsLostWhenWakeupsAreDeletedUnderLoad(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, patient)
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(8)
	for range 3 {
		l.grow(200)
		deleteWakeups(t, client)
	}
	l.account(rc, sub)
}

// A backlog is delivered although all keys of asynq are deleted.
func TestBacklogIsDeliveredThoughAllWakeupsAreLost(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	ids := h.emit(3000)
	deleteWakeups(t, client)
	h.start()
	for n := 500; n < len(ids); n += 500 {
		eventually(t, func() bool { return rc.count() >= n }, "the backlog is delivered")
		deleteWakeups(t, client)
	}
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
	rc.once(t, ids)
}

// deleteWakeups deletes all keys of asynq.
func deleteWakeups(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	keys, err := keysOf(t.Context(), client, "asynq:*")
	if err == nil && len(keys) > 0 {
		err = client.Del(t.Context(), keys...).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
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
	for _, each := range []*harness{h, other} {
		wg.Go(each.start)
	}
	wg.Wait()
	l := h.load(8)
	l.grow(500)
	other.stop(patience)
	l.grow(200)
	l.account(rc, sub)
	l.counted(rc, sub)
}

func TestEverythingWorksInACluster(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.Cluster(t, 3)[0].ClusterClient(), patient)
	rc := receive(t, unsteady)
	sub := h.subscribe(rc.URL)
	h.start()
	l := h.load(4)
	l.grow(300)
	l.account(rc, sub)
	if got := h.all(store.Filter{Size: 100}); len(got) != len(l.accepted) {
		t.Errorf("%d listed of %d", len(got), len(l.accepted))
	}
	ref := events.Ref{Company: h.company, ID: l.accepted[0]}
	if _, err := h.Redelivery.Replay(t.Context(), ref, nil); err != nil {
		t.Error(err)
	}
	h.settled()
}

// Events that were accepted while asynq refused wake-ups are delivered.
func TestWakeupsThatAreRefusedHoldUpNothing(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	rc := receive(t, nil)
	sub := h.subscribe(rc.URL)
	h.start()
	const pendingList = "asynq:{spendhook}:pending"
	if err := client.Set(t.Context(), pendingList, "not a list", 0).Err(); err != nil {
		t.Fatal(err)
	}
	h.reachAll(h.emit(150), sub, delivery.StatusDelivered)
	if err := client.Del(t.Context(), pendingList).Err(); err != nil {
		t.Fatal(err)
	}
	h.reachAll(h.emit(150), sub, delivery.StatusDelivered)
	h.settled()
}

// steps is a clock that a test sets forward and back.
type steps struct{ by atomic.Int64 }

func (s *steps) now() time.Time { return time.Now().Add(time.Duration(s.by.Load())) }

// Under load, the clock is set forward by an hour, back, and forward again. No event is
// lost, and no settled event is sent again.
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
		clock.by.Store(int64(to))
		l.grow(200)
	}
	l.account(rc, sub)
	l.counted(rc, sub)
}

// Work that cannot be started while Redis fails is started once Redis works again.
// This includes jobs and damaged work.
func TestWorkIsStartedOnceRedisWorksAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	proxy, client := throughProxy(t, server, -1)
	h, direct := build(t, client, nil), build(t, server.Client(), nil)
	direct.company = h.company
	rc := receive(t, nil)
	sub := direct.subscribe(rc.URL)
	ids := direct.emit(20)
	direct.damageEvent(ids[7], "garbage")
	job, err := direct.Redelivery.Recover(t.Context(), redelivery.RecoverRequest{Company: h.company, Subscriber: sub.UUID, Since: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	var failed atomic.Int64
	proxy.Follow(func(request [][]string, reply []byte) bool {
		if reply == nil && failed.Load() < 20 && concerns(request, h.company.String(), job.UUID.String()) {
			failed.Add(1)
			return false
		}
		return true
	})
	h.start()
	direct.reachAll(append(ids[:7:7], ids[8:]...), sub, delivery.StatusDelivered)
	direct.completes(job.UUID)
	direct.idle()
	if found := direct.quarantined(); len(found) != 1 {
		t.Errorf("quarantined %v", found)
	}
}

// concerns reports whether a command of the request contains one of the texts.
func concerns(request [][]string, texts ...string) bool {
	for _, command := range request {
		for _, arg := range command {
			for _, text := range texts {
				if strings.Contains(arg, text) {
					return true
				}
			}
		}
	}
	return false
}
