package dispatcher

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
	"spendhook/internal/redisx"
)

// beginAndForget takes all events of the company for the replica of the harness and starts
// none, like a process that is killed right then.
func (h *harness) beginAndForget() {
	h.t.Helper()
	all, _ := h.client.HGet(h.t.Context(), partition.Key(h.company, "c:"+h.company.String()), "seq").Int64()
	var read atomic.Int64
	h.beginAndDie(func(_ *workqueue.Queue, batches []workqueue.Batch) {
		for _, b := range batches {
			read.Add(int64(len(b.Events)))
		}
	}, func() bool { return read.Load() == all })
}

// beginAndDie takes work for the replica of the harness until done, as a process that is killed then.
func (h *harness) beginAndDie(take func(*workqueue.Queue, []workqueue.Batch), done func() bool) {
	h.t.Helper()
	options := *h.client.(*redis.Client).Options()
	client := redis.NewClient(&options)
	h.t.Cleanup(func() { _ = client.Close() })
	var q *workqueue.Queue
	q = workqueue.New(workqueue.Options{
		Client: client, Replica: h.opts.Replica, Admission: h.admission, Logger: slog.New(slog.DiscardHandler),
		Take: func(_ context.Context, batches []workqueue.Batch) { take(q, batches) },
	})
	if err := q.Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	eventually(h.t, done, "all are taken")
	cutOff(client)
	q.Leave(h.t.Context())
	if err := q.Release(h.t.Context()); err == nil {
		h.t.Fatal("a replica without Redis has released its work")
	}
}

// cutOff fails all further commands of a client.
func cutOff(client *redis.Client) {
	client.AddHook(redistest.Hook{
		Command: func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(redis.ErrClosed)
			return redis.ErrClosed
		},
		Pipeline: func(_ context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
			for _, cmd := range cmds {
				cmd.SetErr(redis.ErrClosed)
			}
			return redis.ErrClosed
		},
	})
}

// quickHeartbeats lets a lost replica be found sooner.
func quickHeartbeats(o *Options) { o.Queue.HeartbeatEvery = 50 * time.Millisecond }

// replicas lists the ids that have a heartbeat.
func (h *harness) replicas() []string {
	h.t.Helper()
	all, err := h.client.ZRange(h.t.Context(), partition.Prefix(0)+"replicas", 0, -1).Result()
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

func TestWorkOfALostReplicaIsTakenOver(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	lost := build(t, client, nil)
	rc := receive(t, nil)
	sub := lost.subscribe(rc.URL)
	ids := lost.emit(700) // more than one page of notes
	lost.beginAndForget()
	names := lost.replicas()
	deleteWakeups(t, client)

	h := build(t, client, quickHeartbeats)
	h.company = lost.company
	h.start()
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
	rc.once(t, ids)
	eventually(t, func() bool { return !slices.Contains(h.replicas(), names[0]) }, "the lost replica is forgotten")
}

// A restarted replica requeues the work of its former run before other replicas find that
// run lost.
func TestRestartedReplicaTakesItsOwnWorkAtOnce(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	former := build(t, client, nil)
	rc := receive(t, nil)
	sub := former.subscribe(rc.URL)
	ids := former.emit(20)
	former.beginAndForget()

	h := build(t, client, func(o *Options) {
		o.Replica = former.opts.Replica
		o.Queue.HeartbeatEvery = time.Hour // none after the first
	})
	h.company = former.company
	h.start()
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
	rc.once(t, ids)
}

// Replica names may have dots. The part before the last dot names the process, and only the
// same process counts as a former run.
func TestReplicasWithSimilarNamesAreDistinct(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	gate := make(chan struct{})
	rc := receive(t, func(int, http.ResponseWriter, *http.Request) { <-gate })
	h := build(t, client, func(o *Options) { o.Replica = "host.first" })
	sub := h.subscribe(rc.URL)
	h.start()
	ids := h.emit(5)
	eventually(t, func() bool { return rc.count() == 5 }, "all are in flight")
	other := build(t, client, func(o *Options) { o.Replica = "host.second" })
	other.start()
	if n := h.queueCounter("spendhook_partitions_lost_total"); n > 0 {
		t.Errorf("the first replica lost %v partitions", n)
	}
	close(gate)
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
	rc.once(t, ids)
}

// A shutdown while 2,000 events are in flight or wait in memory, in retry sets and in
// the ready queue: attempts in flight end, and no event is sent twice.
func TestStoppingSendsNothingTwice(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]bool{"slow receivers": true, "fast receivers": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stopAmidst(t, hold)
		})
	}
}

func stopAmidst(t *testing.T, hold bool) {
	t.Helper()
	client := redistest.New(t)
	h := build(t, client, noTimeout)
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	answer := func(int, http.ResponseWriter, *http.Request) {
		if hold {
			<-gate
		}
	}
	a, b, c := receive(t, answer), receive(t, answer), receive(t, answer)
	t.Cleanup(open)
	subA, subB := h.subscribe(a.URL), h.subscribe(b.URL)
	other := uuid.New()
	subC := h.subscribeTo(other, c.URL, "PAYMENT_PAID")           // it is alone, so what is more than its limit waits in memory
	h.subscribeTo(h.company, c.URL+"/idle", "REIMBURSEMENT_PAID") // it is not busy, so deliveries to the others use retry sets
	ids, others := h.emit(2000), h.emitOf(other, 200)
	h.start()
	eventually(t, func() bool {
		counts := h.admission.Counts()
		queued := client.ZCard(t.Context(), queues.RetrySetKey(h.company, subA.UUID)).Val() +
			client.ZCard(t.Context(), queues.RetrySetKey(h.company, subB.UUID)).Val()
		return a.count() > 30 && b.count() > 30 && (!hold || queued > 0 && counts.Held > counts.InFlight)
	}, "some are in flight and others wait")
	go func() {
		<-h.intake.Done()
		open()
	}()
	h.stop(patience)
	for _, key := range h.work() {
		if strings.Contains(key, "}:begun:") || strings.Contains(key, "}:handover") {
			t.Errorf("after the stop there is %s", key)
		}
	}
	next := build(t, client, nil)
	next.company = h.company
	next.start()
	next.reachAll(ids, subA, delivery.StatusDelivered)
	next.reachAll(ids, subB, delivery.StatusDelivered)
	next.reachAll(others, subC, delivery.StatusDelivered)
	next.settled()
	a.once(t, ids)
	b.once(t, ids)
	c.once(t, others)
}

func TestStopDoesNotCountCancelledAttempts(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, func(o *Options) { o.Sender = testSender(time.Hour) })
	entered := make(chan struct{}, 10)
	var hang atomic.Bool
	hang.Store(true)
	sub := h.subscribe(receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		if hang.Load() {
			<-r.Context().Done()
		}
	}).URL)
	h.start()
	id := h.emit(1)[0]
	<-entered
	h.stop(50 * time.Millisecond)
	hang.Store(false)
	next := build(t, client, nil)
	next.company = h.company
	next.start()
	if d := next.reaches(id, sub, delivery.StatusDelivered); d.Count != 1 {
		t.Errorf("delivered with %d attempts", d.Count)
	}
	next.settled()
}

// A shutdown ends although Redis hangs. Another replica takes over the work in flight.
func TestStopEndsThoughRedisHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	h, direct := build(t, daemonClient(t, server.URL()), nil), build(t, server.Client(), nil)
	direct.company = h.company
	rc := receive(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		if n == 300 {
			server.Pause()
		}
	})
	sub := direct.subscribe(rc.URL)
	ids := direct.emit(2000)
	h.start()
	eventually(t, func() bool { return rc.count() >= 300 }, "Redis is paused")
	h.stop(2 * time.Second)
	server.Resume()

	next := build(t, server.Client(), func(o *Options) { o.Replica = h.opts.Replica })
	next.company = h.company
	next.start()
	next.reachAll(ids, sub, delivery.StatusDelivered)
	next.settled()
}

// A replica that is suspended until its partitions are taken over begins nothing more of them, until it owns
// them again. No event is lost, and none is settled twice.
func TestReplicaThatWasTakenOverBeginsNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	proxy, slow := throughProxy(t, server, 0)
	h := build(t, slow, quickHeartbeats)
	other := build(t, server.Client(), quickHeartbeats)
	other.company = h.company
	gate := make(chan struct{})
	rc := receive(t, func(n int, _ http.ResponseWriter, _ *http.Request) {
		if n <= 10 {
			<-gate
		}
	})
	sub := other.subscribe(rc.URL)
	h.start()
	ids := other.emit(10)
	eventually(t, func() bool { return rc.count() == 10 }, "all are in flight")

	hang := make(chan struct{})
	proxy.Follow(func(_ [][]string, reply []byte) bool {
		if reply == nil {
			<-hang
		}
		return true
	})
	other.start()
	other.reachAll(ids, sub, delivery.StatusDelivered)
	close(gate) // the attempts of the first replica end now
	close(hang)
	proxy.Follow(nil)
	h.seq = 1_000_000 // other ids than those of the other replica
	eventually(t, func() bool {
		ids = append(ids, h.emit(20)...) // so that it has turns
		return h.queueCounter("spendhook_partitions_lost_total") == partition.Count
	}, "the first replica has lost its partitions")
	other.reachAll(ids, sub, delivery.StatusDelivered)
	other.settled()
	eventually(t, func() bool {
		return len(h.Queue.Owned()) > 0 && len(h.Queue.Owned())+len(other.Queue.Owned()) == partition.Count
	}, "both replicas own partitions")
	h.stop(patience)
	other.stop(patience)
	if n := h.delivered() + other.delivered(); n != float64(len(ids)) {
		t.Errorf("%v deliveries ended, of %d", n, len(ids))
	}
}

// delivered is the number of ended deliveries in the metrics of this replica.
func (h *harness) delivered() float64 {
	return testutil.ToFloat64(h.metrics.ended.WithLabelValues(string(delivery.StatusDelivered)))
}

// throughProxy is a client that a test may cut off, with the retries of
// redis.Options.
func throughProxy(t *testing.T, server *redistest.Server, retries int) (*redistest.Proxy, redis.UniversalClient) {
	t.Helper()
	proxy := redistest.NewProxy(t, server)
	options, err := redis.ParseURL(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = retries
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return proxy, client
}

// daemonClient is a client with the time-outs of the daemon, so that a stop ends soon while Redis hangs.
func daemonClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	r, err := redisx.Open(t.Context(), redisx.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r.Client()
}

// queueCounter finds a counter of the work queue by its name.
func (h *harness) queueCounter(name string) float64 {
	h.t.Helper()
	families, err := h.opts.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	h.t.Fatalf("there is no counter %s", name)
	return 0
}

// A shutdown ends although the last work waits for a recorder that waits for Redis.
func TestStopEndsThoughTheRecorderIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	proxy := redistest.NewProxy(t, server)
	h, other := build(t, daemonClient(t, proxy.URL()), nil), build(t, server.Client(), nil)
	other.company = h.company
	h.start()
	unreachable := receive(t, (&failing{}).answer)
	sub := other.subscribe(unreachable.URL)
	for i := range 20 {
		other.subscribe(unreachable.URL + "/" + strconv.Itoa(i))
	}
	other.reaches(other.emit(1)[0], sub, delivery.StatusDead) // so that the subscribers are known

	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	var taken atomic.Bool
	proxy.Follow(func(_ [][]string, reply []byte) bool {
		if bytes.Contains(reply, []byte("PAYMENT_PAID")) { // it gives events
			taken.Store(true)
		}
		if reply == nil && taken.Load() {
			<-hang
		}
		return true
	})
	other.emit(200)
	h.Queue.Wake(t.Context(), []int{partition.Of(h.company)})
	eventually(t, taken.Load, "the events are taken")
	h.stop(2 * time.Second)
}
