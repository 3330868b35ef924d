package dispatcher

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/requests"
	"spendhook/dispatcher/traffic"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
	"spendhook/internal/redistest"
	"spendhook/subscribers"
)

// slowly answers after 50 ms, and answers no more than most until it is released.
type slowly struct {
	most     int
	answered atomic.Int64
	release  chan struct{}
}

func newSlowly(most int) *slowly { return &slowly{most: most, release: make(chan struct{})} }

func (s *slowly) answer(_ int, _ http.ResponseWriter, r *http.Request) {
	pace := time.NewTimer(50 * time.Millisecond)
	defer pace.Stop()
	<-pace.C
	if int(s.answered.Add(1)) <= s.most {
		return
	}
	select {
	case <-s.release:
	case <-r.Context().Done():
	}
}

// noTimeout gives attempts a timeout that no test reaches.
func noTimeout(o *Options) { o.Sender = testSender(time.Hour) }

func TestHungEndpointDelaysNoOther(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), noTimeout)
	h.start()
	hung, well := newSlowly(0), receive(t, nil)
	first := h.subscribe(receive(t, hung.answer).URL)
	sub := h.subscribe(well.URL)
	ids := h.emit(500)
	h.reachAll(ids, sub, delivery.StatusDelivered)
	close(hung.release)
	h.reachAll(ids, first, delivery.StatusDelivered)
	h.settled()
	well.once(t, ids)
}

func TestFloodOfOneCompanyDelaysNoOther(t *testing.T) {
	t.Parallel()
	floodDelaysNoOther(t, 1200)
}

// floodDelaysNoOther checks that a company that posts many events to a slow receiver does
// not delay another company: its events are delivered while the flood still waits.
func floodDelaysNoOther(t *testing.T, flooding int) {
	t.Helper()
	h := build(t, redistest.New(t), noTimeout)
	slow, quick := newSlowly(flooding*2/5), receive(t, nil)
	flood := receive(t, slow.answer)
	loud := h.subscribe(flood.URL)
	quiet := h.subscribeTo(uuid.New(), quick.URL, "PAYMENT_PAID")
	ids := h.emit(flooding)
	h.start()
	eventually(t, func() bool { return flood.count() > 0 }, "the flood is under way")
	for range 20 {
		h.reachAll(h.emitOf(quiet.CompanyUUID, 5), quiet, delivery.StatusDelivered)
	}
	if n := int(slow.answered.Load()); n > flooding*2/5+500 {
		t.Errorf("%d events of the flood were answered before", n)
	}
	close(slow.release)
	h.reachAll(ids, loud, delivery.StatusDelivered)
	h.settled()
	flood.once(t, ids)
}

func TestBacklogOfOneEndpointDelaysNoOther(t *testing.T) {
	t.Parallel()
	backlogDelaysNoOther(t, 1200)
}

// backlogDelaysNoOther checks the same between two endpoints of one company.
func backlogDelaysNoOther(t *testing.T, backlog int) {
	t.Helper()
	h := build(t, redistest.New(t), noTimeout)
	slow, quick := newSlowly(backlog/5), receive(t, nil)
	x := receive(t, slow.answer)
	subX, subY := h.subscribe(x.URL), h.subscribe(quick.URL)
	ids := h.emit(backlog)
	h.start()
	h.reachAll(ids, subY, delivery.StatusDelivered)
	more := h.emit(100) // while X has a backlog
	h.reachAll(more, subY, delivery.StatusDelivered)
	if n := int(slow.answered.Load()); n > backlog/5+500 {
		t.Errorf("the slow receiver has answered %d", n)
	}
	close(slow.release)
	ids = append(ids, more...)
	h.reachAll(ids, subX, delivery.StatusDelivered)
	h.settled()
	x.once(t, ids)
	quick.once(t, ids)
}

// failing is a receiver that resets connections until it is repaired, and notes the time of
// each.
type failing struct {
	repaired atomic.Bool
	mu       sync.Mutex
	came     []time.Time
}

func (f *failing) answer(_ int, w http.ResponseWriter, _ *http.Request) {
	if f.repaired.Load() {
		return
	}
	f.mu.Lock()
	f.came = append(f.came, time.Now())
	f.mu.Unlock()
	if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
		_ = c.Close()
	}
}

// probes counts the latest connections that came at least a pause after the one
// before.
func (f *failing) probes(pause time.Duration) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for i := len(f.came) - 1; i > 0 && f.came[i].Sub(f.came[i-1]) >= pause; i-- {
		n++
	}
	return n
}

// While a breaker is open its deliveries wait in the retry set, and one
// probe goes out in each pause.
func TestOpenBreakerLetsOneProbeThroughInEachPause(t *testing.T) {
	t.Parallel()
	const pause = 200 * time.Millisecond
	h := build(t, redistest.New(t), func(o *Options) {
		patient(o)
		o.BreakerFailures, o.BreakerPause = 3, pause
	})
	f := &failing{}
	rc := receive(t, f.answer)
	sub := h.subscribe(rc.URL)
	ids := h.emit(300)
	h.start()
	eventually(t, func() bool { return f.probes(pause) >= 5 }, "only probes are sent")
	queue := queues.RetrySetKey(h.company, sub.UUID)
	if n := h.client.ZCard(t.Context(), queue).Val(); n < 299 {
		t.Errorf("%d wait in the retry set", n)
	}
	ids = append(ids, h.emit(100)...)
	before := f.probes(pause)
	eventually(t, func() bool { return f.probes(pause) >= before+3 }, "only probes are sent, also for events accepted meanwhile")
	f.repaired.Store(true)
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
}

// A new URL ends the pause of the breaker that the former URL has opened.
func TestANewURLIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), func(o *Options) {
		patient(o)
		o.BreakerFailures, o.BreakerPause = 3, time.Hour
	})
	rc := receive(t, (&failing{}).answer)
	sub := h.subscribe(rc.URL)
	h.start()
	ids := h.emit(20)
	eventually(t, func() bool {
		return h.client.HExists(t.Context(), queues.EndpointKey(h.company, sub.UUID), "until").Val() &&
			h.client.ZCard(t.Context(), queues.RetrySetKey(h.company, sub.UUID)).Val() == int64(len(ids)) &&
			h.client.HLen(t.Context(), queues.InFlightKey(h.company, sub.UUID)).Val() == 0
	}, "the breaker is open, and nothing is in flight")
	h.update(sub, subscribers.Settings{CallbackURL: new(receive(t, nil).URL)})
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
}

// While the breaker of an endpoint is open, another replica joins and the partition may change its owner.
// Once the endpoint answers, each event is delivered, whichever replica accepts it.
func TestOpenBreakerAndAnotherReplica(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	adjust := func(o *Options) {
		patient(o)
		o.BreakerFailures, o.BreakerPause = 3, 50*time.Millisecond
	}
	h, other := build(t, client, adjust), build(t, client, adjust)
	f := &failing{}
	sub := h.subscribe(receive(t, f.answer).URL)
	h.start()
	ids := h.emit(20)
	eventually(t, func() bool { return h.admission.Counts().Open == 1 }, "the breaker opens")
	other.start()
	other.seq = 1_000_000 // other ids than those of h
	f.repaired.Store(true)
	eventually(t, func() bool { return len(h.Queue.Owned())+len(other.Queue.Owned()) == partition.Count }, "all partitions are owned")
	for range 10 {
		ids = append(ids, h.emit(1)...)
		ids = append(ids, other.emitOf(h.company, 1)...)
	}
	h.reachAll(ids, sub, delivery.StatusDelivered)
	h.settled()
}

// companyAt returns a company of a server.
func companyAt(t *testing.T, client redis.UniversalClient, server *redistest.Server) uuid.UUID {
	t.Helper()
	for {
		company := uuid.New()
		if shard, err := partition.Shard(t.Context(), client, partition.Of(company)); err != nil {
			t.Fatal(err)
		} else if shard == server.Addr() {
			return company
		}
	}
}

// While a shard is unavailable, the gauges follow the other shards, and keep what the shard had last.
func TestGaugesWhileAShardIsDown(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2, "--cluster-require-full-coverage", "no")
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr(), servers[1].Addr()}, ReadTimeout: time.Second, ContextTimeoutEnabled: true, MaxRedirects: -1,
	})
	t.Cleanup(func() { _ = client.Close() })
	h := build(t, client, func(o *Options) { o.TopCompanies = 5 })
	down, other := companyAt(t, client, servers[0]), companyAt(t, client, servers[1])
	var last backlog.Total
	add := func(company uuid.UUID) {
		h.emitOf(company, 1)
		p := partition.Prefix(partition.Of(company))
		for _, key := range []string{"dead", "quarantine"} {
			if err := client.ZAdd(t.Context(), p+key, redis.Z{Score: float64(time.Now().UnixMilli()), Member: uuid.NewString()}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := func(ofDown, ofOther float64) {
		t.Helper()
		for name, g := range map[string]prometheus.Gauge{"pending": h.metrics.pending, "dead": h.metrics.dead, "quarantine": h.metrics.quarantine} {
			if got := testutil.ToFloat64(g); got != ofDown+ofOther {
				t.Errorf("%s: %v, want %v", name, got, ofDown+ofOther)
			}
		}
		for company, pending := range map[uuid.UUID]float64{down: ofDown, other: ofOther} {
			if got := testutil.ToFloat64(h.metrics.largest.WithLabelValues(company.String())); got != pending {
				t.Errorf("company: %v, want %v", got, pending)
			}
		}
	}
	add(down)
	add(other)
	if err := h.readGauges(t.Context(), allPartitions(), &last); err != nil {
		t.Fatal(err)
	}
	want(1, 1)
	servers[0].Pause()
	defer servers[0].Resume()
	for n := range 2 {
		add(other)
		if err := h.readGauges(t.Context(), allPartitions(), &last); err == nil {
			t.Error("the shard that is unavailable is not reported")
		}
		want(1, float64(2+n))
	}
	servers[0].Resume()
	add(down)
	eventually(t, func() bool { return h.readGauges(t.Context(), allPartitions(), &last) == nil }, "all shards are read")
	want(2, 3)
}

// While the consequences of one shard's outcomes hang, and its recorder waits for them, outcomes
// of another shard are recorded and have their consequences.
func TestConsequencesOfOneShardBlockNoOther(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	client := servers[0].ClusterClient()
	hung, other := companyAt(t, client, servers[0]), companyAt(t, client, servers[1])
	release := make(chan struct{})
	var counted atomic.Int64
	h := build(t, client, func(o *Options) {
		o.Counted = func(a traffic.Attempt) {
			if a.Company == hung {
				<-release
			} else {
				counted.Add(1)
			}
		}
	})
	rc := receive(t, nil)
	ofHung, ofOther := h.subscribeTo(hung, rc.URL, "PAYMENT_PAID"), h.subscribeTo(other, rc.URL, "PAYMENT_PAID")
	h.start()
	defer close(release)
	const batches = consequencesQueue + 2 // one is drawn, the queue is full, the recorder waits with one
	deliver := func(sub subscribers.Subscriber) {
		for range batches {
			h.reachAll(h.emitOf(sub.CompanyUUID, 1), sub, delivery.StatusDelivered)
		}
	}
	deliver(ofHung)
	deliver(ofOther)
	eventually(t, func() bool { return counted.Load() == batches }, "all outcomes of the other shard are counted")
}

// While the filters of a company take long, events of other companies are started and delivered.
// The events that are being matched have places in memory.
func TestFiltersOfOneCompanyDelayNoOther(t *testing.T) {
	t.Parallel()
	h := build(t, redistest.New(t), nil)
	h.publisher = publish.New(publish.Options{Client: h.client, Retention: h.opts.Policy.Retention, Wake: h.Queue.Wake}) // all events wait for turns
	t.Cleanup(h.publisher.Close)
	rc := receive(t, nil)
	slow, other := h.subscribe(rc.URL), h.subscribeTo(uuid.New(), rc.URL, "PAYMENT_PAID")
	h.update(slow, subscribers.Settings{Filter: new("true")})
	matching, release := make(chan struct{}), make(chan struct{})
	begin, end := sync.OnceFunc(func() { close(matching) }), sync.OnceFunc(func() { close(release) })
	defer end()
	target := h.target
	h.target = func(s *subscribers.Subscriber) *requests.Target {
		if s.UUID == slow.UUID {
			begin()
			<-release
		}
		return target(s)
	}
	h.start()
	ids := h.emit(3)
	<-matching
	ofOther := h.emitOf(other.CompanyUUID, 5)
	h.reachAll(ofOther, other, delivery.StatusDelivered)
	eventually(t, func() bool { return h.admission.Counts().Held > 0 && h.admission.Counts().Held <= len(ids) }, "the events that are matched have places")
	if free := h.admission.Free(h.company); free != 0 {
		t.Errorf("%d deliveries may be started before the events are matched", free)
	}
	end()
	h.reachAll(ids, slow, delivery.StatusDelivered)
	h.settled()
	rc.once(t, append(ids, ofOther...))
}
