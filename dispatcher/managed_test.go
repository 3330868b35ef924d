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
	"spendhook/dispatcher/inspect"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/webhook/signature"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// After a 429 with Retry-After nothing is sent to the receiver for that time: neither
// deliveries that wait in memory nor new ones.
func TestRetryAfterPausesTheEndpoint(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var mu sync.Mutex
	var asked time.Time // when the receiver asked for the pause
	early := 0
	r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case n == 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			asked = time.Now()
		case time.Since(asked) < 990*time.Millisecond: // whole ms are kept
			early++
		}
	})
	s := h.subscribe(r.URL)
	first := h.emit(1)
	h.becomes(first[0], s, "RETRYING", func(d delivery.Delivery) bool { return d.Count == 1 })
	ids := append(h.emit(20), first...)
	h.reachAll(ids, s, delivery.StatusDelivered)
	mu.Lock()
	defer mu.Unlock()
	if early > 0 {
		t.Errorf("%d attempts came within the pause", early)
	}
	if n := r.count(); n != len(ids)+1 {
		t.Errorf("%d attempts of %d deliveries", n, len(ids))
	}
}

// Events that arrive while a subscriber is paused wait as PENDING, and are delivered when it
// is resumed. Other subscribers are not delayed.
func TestPausedSubscriberGetsNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	paused, other := receive(t, nil), receive(t, nil)
	s, o := h.subscribe(paused.URL), h.subscribe(other.URL)
	if err := h.opts.Subscribers.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(30)
	h.reachAll(ids, o, delivery.StatusDelivered)
	for _, id := range ids {
		h.becomes(id, s, "PENDING PAUSED", func(d delivery.Delivery) bool {
			return d.Status == delivery.StatusPending && d.Reason == delivery.ReasonPaused && d.NextAttemptAt() == nil
		})
	}
	for i, got := range other.got {
		if n, err := strconv.Atoi(got.header.Get(signature.HeaderSequence)); err != nil || got.header.Get(signature.HeaderID) != ids[n-1] {
			t.Errorf("delivery %d of event %s has the number %d, %v", i, got.header.Get(signature.HeaderID), n, err)
		}
	}
	if n := paused.count(); n > 0 {
		t.Errorf("%d were sent to a paused subscriber", n)
	}
	if err := h.opts.Subscribers.Resume(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	h.reachAll(ids, s, delivery.StatusDelivered)
	paused.once(t, ids)
	h.idle()
}

// Resume can drop the deliveries that waited. Deliveries that arrive meanwhile are kept.
func TestResumeDropsWaitingDeliveries(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := receive(t, nil)
	s := h.subscribe(r.URL)
	if err := h.opts.Subscribers.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(600)
	h.reachAll(ids, s, delivery.StatusPending)
	<-time.After(2 * time.Millisecond) // what came within this millisecond is kept
	job, err := h.Redelivery.Drop(t.Context(), s.CompanyUUID, s.UUID)
	if err != nil {
		t.Fatal(err)
	}
	later := h.emit(1)
	h.reachAll(later, s, delivery.StatusDelivered)
	h.reachAll(ids, s, delivery.StatusCancelled)
	if n := r.count(); n != 1 {
		t.Errorf("%d were sent", n)
	}
	job, err = h.Redelivery.Job(t.Context(), s.CompanyUUID, job.UUID)
	if err != nil || job.Changed != int64(len(ids)) {
		t.Errorf("the job says %+v, %v", job, err)
	}
	h.idle()
}

// A drop neither pauses a subscriber nor, when it is cancelled, ends a pause.
func TestACancelledDropLeavesThePauseAsItWas(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil) // it is not started, so no job runs by itself
	for _, paused := range []bool{true, false} {
		s := h.subscribe(receive(t, nil).URL)
		h.write(s.UUID, h.emit(501), time.Now().Add(-time.Minute), due)
		if paused {
			if err := h.opts.Subscribers.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
				t.Fatal(err)
			}
		}
		job, err := h.Redelivery.Drop(t.Context(), s.CompanyUUID, s.UUID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Redelivery.Step(t.Context(), h.company, job.UUID); err != nil {
			t.Fatal(err)
		}
		if job, err = h.Redelivery.Cancel(t.Context(), h.company, job.UUID); err != nil || job.Changed == 0 {
			t.Fatalf("%+v, %v", job, err)
		}
		state, err := h.opts.Health.Of(t.Context(), h.company, s.UUID)
		if got := state[s.UUID].PausedAt != nil; err != nil || got != paused {
			t.Errorf("after the cancelled drop it is paused: %v, %v; before: %v", got, err, paused)
		}
	}
}

var errCut = errors.New("the connection to Redis is cut")

// severable lets a test cut the connection of a replica to Redis permanently.
func severable(client redis.UniversalClient) (cut *atomic.Bool) {
	cut = &atomic.Bool{}
	client.AddHook(redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if cut.Load() {
				cmd.SetErr(errCut)
				return errCut
			}
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if cut.Load() {
				for _, cmd := range cmds {
					cmd.SetErr(errCut)
				}
				return errCut
			}
			return next(ctx, cmds)
		},
	})
	return cut
}

// inOrder is a receiver that fails now and then, and checks that it gets one delivery
// at a time, each after all earlier ones. A repeat of the last one is right: its answer
// may have been lost.
type inOrder struct {
	t        *testing.T
	step     int // between the numbers of its events
	mu       sync.Mutex
	inFlight int
	done     int // the number of the last one that was answered with success
}

func (o *inOrder) answer(_ int, w http.ResponseWriter, r *http.Request) {
	number, _ := strconv.Atoi(strings.TrimPrefix(r.Header.Get(signature.HeaderID), "evt-"))
	o.mu.Lock()
	if o.inFlight++; o.inFlight > 1 {
		o.t.Errorf("%d attempts at a time", o.inFlight)
	}
	if number != o.done && number != o.done+o.step {
		o.t.Errorf("event %d came after %d", number, o.done)
	}
	o.mu.Unlock()
	select { // so that two at a time would meet
	case <-time.After(time.Duration(rand.IntN(3)) * time.Millisecond):
	case <-r.Context().Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inFlight--
	if rand.IntN(10) == 0 {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	o.done = max(o.done, number)
}

// cutOne cuts the connection of a replica with work in flight, and reports whether there
// is one.
func cutOne(h *harness, cuts map[*harness]*atomic.Bool) bool {
	for other, cut := range cuts {
		if !cut.Load() && h.hasInFlight(other.opts.Replica) {
			cut.Store(true)
			other.stop(time.Millisecond) // it can finish nothing
			return true
		}
	}
	return false
}

// hasInFlight reports whether a replica has deliveries in flight that waited before.
func (h *harness) hasInFlight(replica string) bool {
	h.t.Helper()
	for _, key := range h.work() {
		if !strings.Contains(key, "}:ef:") {
			continue
		}
		for _, mark := range h.client.HVals(h.t.Context(), key).Val() {
			if strings.HasPrefix(mark, replica+".") {
				return true
			}
		}
	}
	return false
}

// An ordered subscriber gets its deliveries one at a time and in the order in which their
// events were accepted, while replicas start and are lost with work in flight.
func TestOrderHoldsWhileReplicasAreLost(t *testing.T) {
	t.Parallel()
	order := &inOrder{t: t, step: 1}
	testOrder(t, oneServer(t), subscribers.Settings{Ordered: new(true)}, order.answer)
}

// So does a subscriber that is ordered by key, for each key.
func TestOrderByKeyHoldsWhileReplicasAreLost(t *testing.T) {
	t.Parallel()
	for name, connect := range map[string]func(*testing.T) func() redis.UniversalClient{"server": oneServer, "cluster": twoServers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			orderByKeyHolds(t, connect(t))
		})
	}
}

func orderByKeyHolds(t *testing.T, connect func() redis.UniversalClient) {
	t.Helper()
	even, odd := &inOrder{t: t, step: 2}, &inOrder{t: t, step: 2, done: -1}
	testOrder(t, connect, subscribers.Settings{OrderedBy: new(`id.matches("[02468]$")`)}, func(n int, w http.ResponseWriter, r *http.Request) {
		if strings.ContainsAny(r.Header.Get(signature.HeaderID)[len(r.Header.Get(signature.HeaderID))-1:], "02468") {
			even.answer(n, w, r)
		} else {
			odd.answer(n, w, r)
		}
	})
}

// oneServer starts a Redis server, and returns what connects to it.
func oneServer(t *testing.T) func() redis.UniversalClient {
	t.Helper()
	return redistest.Start(t, redistest.Options{}).Client
}

// twoServers is oneServer for a Cluster.
func twoServers(t *testing.T) func() redis.UniversalClient {
	t.Helper()
	server := redistest.Cluster(t, 2)[0]
	return func() redis.UniversalClient { return server.ClusterClient() }
}

func testOrder(t *testing.T, connect func() redis.UniversalClient, settings subscribers.Settings, answer func(int, http.ResponseWriter, *http.Request)) {
	t.Helper()
	const timeout = 3 * time.Second // a receiver that is slower would have two attempts at a time
	cuts := map[*harness]*atomic.Bool{}
	replica := func(name string) *harness {
		client := connect()
		cut := severable(client)
		h := build(t, client, func(o *Options) {
			o.Replica, o.Sender = name, testSender(timeout)
			o.Queue.HeartbeatEvery = 50 * time.Millisecond
			o.Policy.Schedule = []time.Duration{0, 0, 0, 10 * time.Millisecond, 10 * time.Millisecond, 0, 0, 0, 0, 0}
		})
		cuts[h] = cut
		return h
	}
	emitter := replica("emitter")
	r := receive(t, answer)
	settings.Name, settings.CallbackURL, settings.Events = new("in order"), &r.URL, &[]string{"PAYMENT_PAID"}
	s, err := emitter.service.Create(t.Context(), emitter.company, settings)
	if err != nil {
		t.Fatal(err)
	}
	replica("r0").start()
	var ids []string
	for lost := range 2 {
		replica("r" + strconv.Itoa(lost+1)).start()
		ids = append(ids, emitter.emit(40)...)
		before := r.count()
		eventually(t, func() bool { return r.count() > before+5 && cutOne(emitter, cuts) }, "one is lost with what it has in flight")
	}
	emitter.reachAll(ids, s, delivery.StatusDelivered)
	emitter.settled()
}

// A delivery waits for the first one with its order key, as explain says, and for none with another one.
func TestOrderKeyWaits(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) { o.Policy.Schedule = []time.Duration{time.Hour} })
	h.start()
	var fails atomic.Bool
	fails.Store(true)
	r := receive(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if fails.Load() && r.Header.Get(signature.HeaderID) == "evt-1" {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	s := h.subscribe(r.URL)
	h.update(s, subscribers.Settings{OrderedBy: new(`id == "evt-1" || id == "evt-3" ? "same" : id == "evt-5" ? metadata.none : id`)})
	says := func(id, want string) {
		t.Helper()
		all, err := h.inspector.Explain(t.Context(), events.Ref{Company: h.company, ID: id})
		if err != nil || len(all) != 1 || !strings.Contains(all[0].Detail(), want) {
			t.Errorf("%s: %v, %+v", id, err, all)
		}
	}
	ids := h.emit(3)
	h.reaches(ids[0], s, delivery.StatusRetrying)
	h.reaches(ids[1], s, delivery.StatusDelivered)
	h.reaches(ids[2], s, delivery.StatusPending)
	says(ids[2], "The delivery of event evt-1,")
	ids = append(ids, h.emit(2)...)
	h.reachAll(ids[3:], s, delivery.StatusDelivered)
	says(ids[4], "Delivered: attempt 1")
	fails.Store(false)
	if _, err := h.Redelivery.Retry(t.Context(), s.CompanyUUID, ids[0]+"."+s.UUID.String()); err != nil {
		t.Fatal(err)
	}
	h.reachAll(ids, s, delivery.StatusDelivered)
	h.idle()
}

// An order does not wait for the attempts to another subscriber of the earlier event.
func TestOrderIsNotDelayedByOthers(t *testing.T) {
	t.Parallel()
	for _, settings := range []subscribers.Settings{{Ordered: new(true)}, {OrderedBy: new("id")}, {OrderedBy: new("event")}} {
		h := build(t, redistest.New(t), func(o *Options) { o.Sender = testSender(time.Hour) })
		h.start()
		release := make(chan struct{})
		slow := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		})
		r := receive(t, nil)
		other, s := h.subscribe(slow.URL), h.subscribe(r.URL)
		h.update(s, settings)
		ids := h.emit(3)
		h.reachAll(ids, s, delivery.StatusDelivered)
		close(release)
		h.reachAll(ids, other, delivery.StatusDelivered)
	}
}

// A delivery whose record cannot be read goes to the quarantine, and delays no other with its order key.
func TestOrderKeyOfADamagedDelivery(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := receive(t, nil)
	s := h.subscribe(r.URL)
	h.update(s, subscribers.Settings{OrderedBy: new("event")})
	if err := h.service.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(3)
	h.reachAll(ids, s, delivery.StatusPending)
	key := partition.Key(s.CompanyUUID, "d:"+s.CompanyUUID.String()+"/"+ids[0])
	if err := h.client.HSet(t.Context(), key, s.UUID.String(), "P1|damaged").Err(); err != nil {
		t.Fatal(err)
	}
	if err := h.service.Resume(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	h.reachAll(ids[1:], s, delivery.StatusDelivered)
	e := quarantine.Entry{Company: s.CompanyUUID, EventID: ids[0], Subscriber: &s.UUID}
	eventually(t, func() bool { listed, err := h.Quarantine.Has(t.Context(), e); return err == nil && listed }, "it is in the quarantine")
	if err := h.Redelivery.DropQuarantined(t.Context(), e); err != nil {
		t.Error(err)
	}
	h.settled()
}

// What waits for an ordered subscriber while it is disabled keeps its order when the subscriber is
// enabled, also before what comes then.
func TestOrderHoldsWhenASubscriberIsEnabled(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) {
		o.Policy.Schedule, o.JobPage = make([]time.Duration, 10), 50 // the receiver fails at random
	})
	h.start()
	order := &inOrder{t: t, step: 1}
	r := receive(t, order.answer)
	s := h.subscribe(r.URL)
	h.update(s, subscribers.Settings{Ordered: new(true)})
	if err := h.service.Pause(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	ids := h.emit(60) // more than one page of a job
	h.reachAll(ids, s, delivery.StatusPending)
	h.enable(s, false)
	if err := h.service.Resume(t.Context(), s.CompanyUUID, s.UUID); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		h.becomes(id, s, "held", held)
	}
	if n := r.count(); n > 0 {
		t.Errorf("%d were sent to a disabled subscriber", n)
	}
	if n, err := h.Deliveries.Stats(t.Context(), s.CompanyUUID, s.UUID); err != nil || n[0].Waiting != 0 {
		t.Errorf("deliveries to a disabled subscriber count as due: %+v, %v", n, err)
	}
	h.enable(s, true)
	ids = append(ids, h.emit(20)...)
	h.reachAll(ids, s, delivery.StatusDelivered)
	h.settled()
}

// A rate limit holds over all replicas. Deliveries above it wait and delay no other
// subscriber.
func TestRateHoldsOverReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	var replicas []*harness
	for i := range 4 {
		h := build(t, server.Client(), func(o *Options) { o.Replica = "r" + strconv.Itoa(i) })
		h.start()
		replicas = append(replicas, h)
	}
	h := replicas[0]
	limited, other := receive(t, nil), receive(t, nil)
	const perSecond, burst, n = 100, 5, 300
	s, err := h.service.Create(t.Context(), h.company, subscribers.Settings{
		Name: new("limited"), CallbackURL: &limited.URL, Events: &[]string{"PAYMENT_PAID"},
		RateLimit: &subscribers.RateLimit{PerSecond: perSecond, Burst: burst},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := h.subscribe(other.URL)
	began := time.Now()
	ids := h.emit(n)
	h.reachAll(ids, o, delivery.StatusDelivered)
	h.reachAll(ids, s, delivery.StatusDelivered)
	if took, least := time.Since(began), time.Duration(n-burst)*time.Second/perSecond; took < least-10*time.Millisecond {
		t.Errorf("%d deliveries took %v, want at least %v", n, took, least)
	}
	limited.once(t, ids)
	d := h.deliveryOf(ids[n-1], s)
	if first := d.Attempts[0]; d.Count != 1 || first.Number != 1 {
		t.Errorf("the last delivery took %d attempts", d.Count)
	}
}

// Deliveries that wait while ordering is turned on or off are delivered exactly once.
func TestOrderCanBeTurnedOnAndOff(t *testing.T) {
	t.Parallel()
	h := setup(t)
	r := receive(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-r.Context().Done():
		}
	})
	s := h.subscribe(r.URL)
	var ids []string
	for on := range 6 {
		ids = append(ids, h.emit(150)...)
		h.update(s, subscribers.Settings{Ordered: new(on%2 == 0)})
	}
	h.reachAll(ids, s, delivery.StatusDelivered)
	r.once(t, ids)
	h.idle()
}

// An event goes to the subscribers whose filter is true of it, now, on a replay, and in
// a recover job. One whose filter fails on the event does not get it.
func TestFiltersSelectTheSubscribersOfAnEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	boxes := map[string]*inbox{}
	var subs []subscribers.Subscriber
	for _, filter := range []string{`metadata.n == 1`, `metadata.n > 1`, `metadata.missing == 1`, ""} {
		boxes[filter] = receive(t, nil)
		s, err := h.service.Create(t.Context(), h.company, subscribers.Settings{
			Name: new("filtered"), CallbackURL: &boxes[filter].URL, Events: &[]string{"PAYMENT_PAID"}, Filter: &filter,
		})
		if err != nil {
			t.Fatal(err)
		}
		subs = append(subs, s)
	}
	id := h.emit(1)[0]
	h.reaches(id, subs[0], delivery.StatusDelivered)
	h.reaches(id, subs[3], delivery.StatusDelivered)
	h.settled()
	again, err := h.Redelivery.Replay(t.Context(), events.Ref{Company: h.company, ID: id}, nil)
	if err != nil || len(again) != 2 {
		t.Errorf("replayed %v, %v", again, err)
	}
	job, err := h.Redelivery.Recover(t.Context(), redelivery.RecoverRequest{Company: h.company, Subscriber: subs[1].UUID, Since: time.Now().Add(-time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		job, err = h.Redelivery.Job(t.Context(), h.company, job.UUID)
		return err == nil && job.Status == redelivery.JobCompleted
	}, "the job is done")
	h.idle()
	for filter, n := range map[string]int{`metadata.n == 1`: 2, `metadata.n > 1`: 0, `metadata.missing == 1`: 0, "": 2} {
		if got := boxes[filter].count(); got != n {
			t.Errorf("%q: %d deliveries", filter, got)
		}
	}
	list, err := h.inspector.Explain(t.Context(), events.Ref{Company: h.company, ID: id})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		want := map[string]inspect.Verdict{`metadata.n == 1`: inspect.VerdictDelivered, "": inspect.VerdictDelivered}[e.Subscriber.Filter]
		if want == "" {
			want = inspect.VerdictFiltered
		}
		if e.Verdict != want || (e.Err != nil) != (e.Subscriber.Filter == `metadata.missing == 1`) {
			t.Errorf("%q: %s, %v", e.Subscriber.Filter, e.Verdict, e.Err)
		}
	}
}

// An event whose filters were not all evaluated when the dispatcher stopped is matched again, by all of
// them: the cut-off filter is not taken for one that failed.
func TestAnEventWhoseMatchWasCutOffIsMatchedAgain(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	h := build(t, client, nil)
	list := "[" + strings.Repeat("1,", 24) + "1]"
	pairs := list + ".all(a, " + list + ".all(b, a + b == 2))" // thousands of steps, and true
	rc := receive(t, nil)
	for i := range 20 { // which delay the matches of others
		costly := h.subscribeTo(h.company, rc.URL+"/"+strconv.Itoa(i), "OTHER", "PAYMENT_PAID")
		filter := list + ".all(c, " + pairs + ") && false"
		h.update(costly, subscribers.Settings{Filter: &filter})
	}
	sub := h.subscribe(rc.URL)
	h.update(sub, subscribers.Settings{Filter: &pairs})
	ids := h.emit(20)
	h.start()
	eventually(t, func() bool { return rc.count() > 0 }, "the first event is delivered")
	h.stop(time.Millisecond)
	if n := rc.count(); n == len(ids) {
		t.Log("all were matched before the stop")
	}
	next := build(t, client, nil)
	next.company = h.company
	next.start()
	next.reachAll(ids, sub, delivery.StatusDelivered)
}
