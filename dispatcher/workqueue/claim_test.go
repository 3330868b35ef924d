package workqueue_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// taker is the admission of a replica, and records the claimed batches.
type taker struct {
	mu      sync.Mutex
	shares  map[uuid.UUID]int
	others  int
	skipped map[uuid.UUID]int
	batches []workqueue.Batch
}

func (k *taker) Holding() (map[uuid.UUID]int, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shares, k.others
}

func (k *taker) Free(company uuid.UUID) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if share, ok := k.shares[company]; ok {
		return share
	}
	return k.others
}

func (k *taker) Skipped(company uuid.UUID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.skipped == nil {
		k.skipped = make(map[uuid.UUID]int)
	}
	k.skipped[company]++
	return false
}

func (k *taker) take(_ context.Context, batches []workqueue.Batch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.batches = append(k.batches, batches...)
}

// set changes how many deliveries each company may claim.
func (k *taker) set(others int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shares, k.others = nil, others
}

// events lists the events that were taken.
func (k *taker) events() (out []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, b := range k.batches {
		for _, e := range b.Events {
			out = append(out, e.ID)
		}
	}
	slices.Sort(out)
	return out
}

// start runs a replica that claims by itself, until the test ends.
func start(t *testing.T, client redis.UniversalClient, k *taker, change func(*workqueue.Options)) *workqueue.Queue {
	t.Helper()
	o := workqueue.Options{
		Client: client, Replica: "r", Admission: k, Take: k.take, EndpointLimit: testLimit, HostLimit: testHost,
		BreakerFailures: testFailures,
		HeartbeatEvery:  20 * time.Millisecond, ServiceEvery: 10 * time.Millisecond,
	}
	if change != nil {
		change(&o)
	}
	q := workqueue.New(o)
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		q.StopClaiming(context.Background())
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = q.Release(ctx) // a test may have broken its Redis
	})
	return q
}

// proxied is a client that connects through a proxy and retries each command as often as
// retries says.
func proxied(t *testing.T, p *redistest.Proxy, retries int) redis.UniversalClient {
	t.Helper()
	o, err := redis.ParseURL(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = retries
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Work is claimed again when the answer of its claim was lost.
func TestAnswerOfAClaimIsLost(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"sent again": 1, "not sent again": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.Options{})
			proxy := redistest.NewProxy(t, server)
			client := proxied(t, proxy, retries)
			b := newBench(t, server.Client())
			b.claim(b.queue("other")) // so that Redis knows the script
			company := companies(testPartition, 1)[0]
			b.accept(company, ids("e", 10)...)
			var once sync.Once
			proxy.Follow(func(request [][]string, reply []byte) (pass bool) {
				pass = true
				if reply != nil && len(request[0]) > 1 && request[0][1] == workqueue.ClaimHash() {
					once.Do(func() { pass = false })
				}
				return pass
			})
			k := &taker{others: 100}
			q := start(t, client, k, nil)
			q.Wake(context.Background(), []int{testPartition})
			eventually(t, "all events are claimed", func() bool { return len(k.events()) == 10 })
			b.mustBeRight()
		})
	}
}

// A claim that Redis runs after its recovery claims nothing.
func TestLateClaimClaimsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	b.accept(company, "a", "b")
	if err := q.Recover(t.Context(), testPartition, 5); err != nil {
		t.Fatal(err)
	}
	for _, number := range []uint64{4, 5} {
		if c := q.Repeat(t.Context(), testPartition, number); c.Err == nil {
			t.Errorf("claim %d took %+v", number, c)
		}
	}
	if c := q.Repeat(t.Context(), testPartition, 6); c.Err != nil || len(c.Batches) != 1 {
		t.Errorf("claim 6 answered %+v", c)
	}
	b.mustBeRight()
	if n := b.takeOver(b.queue("s"), q.Name()); n != 2 {
		t.Errorf("%d notes were taken over", n)
	}
	if left := b.mustBeRight().under("n:"); len(left) > 0 {
		t.Errorf("notes of %v are left", left)
	}
}

// lostAnswers is a hook of a Redis client. While it is on, the answers of claims are lost, and
// recoveries are not sent.
type lostAnswers struct {
	mu     sync.Mutex
	on     bool
	calls  map[string]int // by hash of the script and key prefix
	during func()         // called during each claim
}

func (s *lostAnswers) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s *lostAnswers) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s *lostAnswers) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		hash := ""
		if args := cmds[0].Args(); len(args) > 5 && args[0] == "evalsha" {
			hash, _ = args[1].(string)
		}
		if !s.take(hash, cmds) {
			return next(ctx, cmds)
		}
		if hash == workqueue.ClaimHash() {
			s.during()
			_ = next(ctx, cmds)
		}
		for _, cmd := range cmds {
			cmd.SetErr(errors.New("no answer"))
		}
		return cmds[0].Err()
	}
}

// take counts the calls, and reports whether their answers are lost.
func (s *lostAnswers) take(hash string, cmds []redis.Cmder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on || hash != workqueue.ClaimHash() && hash != workqueue.RequeueHash() {
		return false
	}
	for _, cmd := range cmds {
		prefix, _ := cmd.Args()[5].(string) // after the hash, the number of keys, and two keys
		s.calls[hash+prefix]++
	}
	return true
}

func (s *lostAnswers) set(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = on
}

func (s *lostAnswers) count(hash string, p int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[hash+partition.Prefix(p)]
}

// failedClaims counts the lines about failed claims at level error.
type failedClaims struct {
	slog.Handler
	mu sync.Mutex
	n  int
}

func (f *failedClaims) Enabled(context.Context, slog.Level) bool { return true }
func (f *failedClaims) Handle(_ context.Context, r slog.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Message == "claim failed" && r.Level == slog.LevelError {
		f.n++
	}
	return nil
}

func (f *failedClaims) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// While a claim of a partition is being recovered, no other claim of the partition is sent, so
// there is one recovery per partition, however often the partition is to be served. Failed claims
// are logged once a minute.
func TestOneRecoveryPerPartition(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	b.claim(b.queue("other")) // so that Redis knows the script
	var q *workqueue.Queue
	h := &lostAnswers{calls: make(map[string]int), during: func() { q.Wake(context.Background(), []int{testPartition}) }}
	b.client.AddHook(h)
	lines, k := &failedClaims{Handler: slog.DiscardHandler}, &taker{others: 100}
	q = start(t, b.client, k, func(o *workqueue.Options) { o.Logger = slog.New(lines) })
	h.set(true)
	b.accept(companies(testPartition, 1)[0], ids("e", 10)...)
	q.Wake(context.Background(), []int{testPartition})
	eventually(t, "the recovery is tried twice", func() bool { return h.count(workqueue.RequeueHash(), testPartition) >= 2 })
	for p := testPartition + 1; p <= testPartition+5; p++ {
		q.Wake(context.Background(), []int{testPartition, p}) // in this order
		eventually(t, "another partition is claimed from", func() bool { return h.count(workqueue.ClaimHash(), p) > 0 })
	}
	if n := h.count(workqueue.ClaimHash(), testPartition); n != 1 {
		t.Errorf("%d claims were sent", n)
	}
	if n := lines.count(); n != 1 {
		t.Errorf("%d lines were logged", n)
	}
	h.set(false)
	eventually(t, "all events are claimed", func() bool { return len(k.events()) == 10 })
	b.mustBeRight()
}

// All claims whose answers were lost are recovered together.
func TestAllLostClaimsAreRecovered(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{} // has no places: the replica claims nothing by itself
	q, company := start(t, b.client, k, slowly("r")), companies(testPartition, 1)[0]
	token, first, second := q.Token(testPartition), q.Number(), q.Number()
	b.accept(company, "a")
	q.ClaimAs(t.Context(), token, testPartition, first)
	b.accept(company, "b")
	q.ClaimAs(t.Context(), token, testPartition, second)
	q.Lose(testPartition, first)
	q.Lose(testPartition, second)
	eventually(t, "both are ready", func() bool { return b.do("LLEN", "q:"+company.String()) == int64(2) })
	if c := q.ClaimAs(t.Context(), token, testPartition, second); c.Err == nil {
		t.Errorf("a recovered claim took %+v", c)
	}
	b.mustBeRight()
}

// The events of a replica that stops are no suspects, unlike those of a lost one.
func TestStopMakesNoSuspects(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{others: 100}
	q := start(t, b.client, k, nil)
	b.accept(companies(testPartition, 1)[0], ids("e", 3)...)
	eventually(t, "the events are claimed", func() bool { return len(k.events()) == 3 })
	q.StopClaiming(t.Context())
	if err := q.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	suspects := func(batches []workqueue.Batch) (n int) {
		for _, e := range batches[0].Events {
			if e.Suspect {
				n++
			}
		}
		return n
	}
	next := b.queue("next")
	if batches := b.claim(next); len(batches[0].Events) != 3 || suspects(batches) != 0 {
		t.Errorf("after a stop %+v", batches)
	}
	b.takeOver(b.queue("last"), next.Name())
	if batches := b.claim(b.queue("last")); len(batches[0].Events) != 3 || suspects(batches) != 3 {
		t.Errorf("after a loss %+v", batches)
	}
	b.mustBeRight()
}
