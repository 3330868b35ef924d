package workqueue_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// testPartition holds the companies of most tests.
const testPartition = 7

// companies makes up n companies of one partition.
func companies(p, n int) []uuid.UUID {
	var out []uuid.UUID
	for i := uint32(1); len(out) < n; i++ {
		id := uuid.UUID{6: 0x40, 8: 0x80}
		binary.BigEndian.PutUint32(id[12:], i)
		if partition.Of(id) == p {
			out = append(out, id)
		}
	}
	return out
}

// subscriber is the n-th subscriber of a company.
func subscriber(company uuid.UUID, n int) uuid.UUID {
	company[0] = byte(n + 1)
	return company
}

const (
	testLimit = 3 // deliveries of an endpoint in flight
	soon      = time.Minute
)

var testPolicy = delivery.Policy{
	Schedule: make([]time.Duration, 16), Retention: time.Hour, DeadRetention: 2 * time.Hour, RetryAfterMax: time.Hour,
}

// fataler is what testing.TB and rapid.T have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// bench is one Redis with the stores of the system on it.
type bench struct {
	tb        fataler
	ctx       context.Context //nolint:containedctx // the test's
	client    redis.UniversalClient
	stores    *store.Store
	orderKeys map[string]string // order keys of deliveries, <company>/<event>/<subscriber>, at their first record
}

func newBench(tb testing.TB) *bench {
	tb.Helper()
	return benchOn(tb, redistest.New(tb))
}

func benchOn(tb testing.TB, client redis.UniversalClient) *bench {
	tb.Helper()
	return &bench{tb: tb, ctx: tb.Context(), client: client, stores: store.New(store.Options{Client: client, Policy: testPolicy}), orderKeys: map[string]string{}}
}

// task is an event that is being matched, or a delivery that is in flight.
type task struct {
	token   string
	company uuid.UUID
	event   string
	sub     uuid.UUID // zero: the event
	known   []uuid.UUID
	suspect bool
	record  string
	waits   []uuid.UUID // subscribers whose deliveries wait behind others
}

func (t task) String() string {
	if t.sub == uuid.Nil {
		return t.company.String() + "/" + t.event
	}
	return t.company.String() + "/" + t.event + "/" + t.sub.String()
}

// batch is the task as the queue gave it.
func (t task) batch() workqueue.Batch {
	b := workqueue.Batch{Company: t.company, Token: t.token}
	if t.sub == uuid.Nil {
		b.Events = []workqueue.Event{{ID: t.event}}
	} else {
		b.Deliveries = []workqueue.Delivery{{Subscriber: t.sub, EventID: t.event}}
	}
	return b
}

// process is a replica. The test itself does the work that the replica begins.
type process struct {
	*workqueue.Queue

	b      *bench
	name   string
	cut    atomic.Bool // nothing reaches Redis any more
	client redis.UniversalClient
	events *publish.Publisher // of this process

	mu     sync.Mutex
	tasks  []task
	jobs   []uuid.UUID
	token  string // of the jobs
	most   int    // that any company may start; default 1,000
	limit  int    // deliveries of an endpoint in flight; 0: testLimit
	closed bool   // no endpoint has a place
	shares map[uuid.UUID]int
}

// errCut is the error of all commands of a process that is cut off.
var errCut = errors.New("cut off")

// start starts a replica. It ends with the test.
func (b *bench) start(tb testing.TB, name string, change ...func(*workqueue.Options)) *process {
	tb.Helper()
	p := b.launch(name, change...)
	tb.Cleanup(p.stop)
	return p
}

// launch starts a replica, which the caller stops.
func (b *bench) launch(name string, change ...func(*workqueue.Options)) *process {
	b.tb.Helper()
	p := &process{b: b, name: name, client: connect(b.client), most: 1000}
	p.client.AddHook(redistest.Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if p.cut.Load() {
				cmd.SetErr(errCut)
				return errCut
			}
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			if p.cut.Load() {
				for _, cmd := range cmds {
					cmd.SetErr(errCut)
				}
				return errCut
			}
			return next(ctx, cmds)
		},
	})
	o := workqueue.Options{Client: p.client, Replica: name, Admission: p, Take: p.take, LookEvery: 20 * time.Millisecond}
	for _, c := range change {
		c(&o)
	}
	p.Queue = workqueue.New(o)
	p.events = publish.New(publish.Options{Client: p.client, Retention: time.Hour, Owner: p.Queue, Wake: p.Wake})
	if err := p.Start(b.ctx); err != nil {
		b.tb.Fatalf("start: %v", err)
	}
	return p
}

// connect makes another client of the same servers.
func connect(client redis.UniversalClient) redis.UniversalClient {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		options := *cluster.Options()
		return redis.NewClusterClient(&options)
	}
	options := *client.(*redis.Client).Options()
	return redis.NewClient(&options)
}

// stop leaves the work that is not done to other replicas.
func (p *process) stop() {
	p.events.Close()
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	p.Leave(ctx)
	_ = p.Release(ctx) // fails once it is cut off
	_ = p.client.Close()
}

// kill ends the process without a word to Redis.
func (p *process) kill() {
	p.cut.Store(true)
	p.stop()
}

func (p *process) take(_ context.Context, batches []workqueue.Batch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range batches {
		for _, e := range b.Events {
			p.tasks = append(p.tasks, task{
				token: b.Token, company: b.Company, event: e.ID, known: e.Known, suspect: e.Suspect, waits: append(b.Backlogged, b.Paused...),
			})
		}
		for _, d := range b.Deliveries {
			p.tasks = append(p.tasks, task{token: b.Token, company: b.Company, event: d.EventID, sub: d.Subscriber, record: d.Record})
		}
		if len(b.Jobs) > 0 {
			p.jobs, p.token = append(p.jobs, b.Jobs...), b.Token
		}
	}
}

// Holding, Skipped, Free, MayStart and Learned make p an Admission.
func (p *process) Holding() (map[uuid.UUID]int, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.shares), p.most
}

// Skipped is false: a company that was left out has places again after a moment.
func (p *process) Skipped(uuid.UUID) bool { return false }

// Free is as much for each company.
func (p *process) Free(uuid.UUID) int { return p.free() }

func (p *process) free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.most
}

// MayStart is the limit less what is in flight.
func (p *process) MayStart(_, endpoint uuid.UUID) (int, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := cmp.Or(p.limit, testLimit)
	for _, t := range p.tasks {
		if t.sub == endpoint {
			n--
		}
	}
	if p.closed {
		n = 0
	}
	return max(0, n), time.Time{}
}

// Learned learns nothing.
func (p *process) Learned(_, _ uuid.UUID, _ int, _ time.Duration) {}

// share sets how many deliveries a company may start.
func (p *process) share(company uuid.UUID, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shares = map[uuid.UUID]int{company: n}
}

// allow sets how many deliveries any company may start.
func (p *process) allow(n int) {
	p.mu.Lock()
	p.most = n
	p.mu.Unlock()
	p.Freed()
}

// has lists what the process is to do, sorted.
func (p *process) has() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks {
		all = append(all, t.String())
	}
	slices.Sort(all)
	return all
}

// ids lists the events that the process is to match, without their company, in the order in which it got them.
func (p *process) ids() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks {
		if t.sub == uuid.Nil {
			all = append(all, t.event)
		}
	}
	return all
}

// jobCount is the number of jobs that the process is to run.
func (p *process) jobCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.jobs)
}

// remove takes a task away that is done.
func (p *process) remove(done task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.tasks, func(t task) bool { return t.String() == done.String() && t.token == done.token })
	p.tasks = slices.Delete(p.tasks, i, i+1)
}

// find is a task of the process.
func (p *process) find(name string) task {
	p.b.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks {
		if t.String() == name {
			return t
		}
	}
	p.b.tb.Fatalf("%s has no %s", p.name, name)
	return task{}
}

// settle waits until the process has begun all that it may begin.
func (p *process) settle() {
	p.b.tb.Helper()
	p.AwaitWakeups()
	for range 2 { // what the first look finds may be told again
		p.Look()
		eventually(p.b.tb, "the process is quiet", p.Quiet)
	}
}

// outcome is what becomes of an attempt.
type outcome func(delivery.Record, time.Time) delivery.Record

func succeeds(r delivery.Record, now time.Time) delivery.Record {
	return delivery.Decide(r, attempt.Result{StatusCode: 200, StartedAt: now}, testPolicy, now, func() float64 { return 0 })
}

func fails(r delivery.Record, now time.Time) delivery.Record {
	return delivery.Decide(r, attempt.Result{StatusCode: 500, Class: attempt.ClassHTTP5xx, StartedAt: now}, testPolicy, now, func() float64 { return 0 })
}

// waits has a delivery wait for its first attempt.
func waits(r delivery.Record, now time.Time) delivery.Record {
	return delivery.Queue(r, delivery.ReasonBusy, now)
}

// write writes the outcomes of a task as the recorder does, and tells the queue. A process that is cut off writes
// nothing.
func (p *process) write(t task, subs []uuid.UUID, outcomes []outcome) {
	p.b.tb.Helper()
	now := time.Now()
	w := store.Write{Event: events.Ref{Company: t.company, ID: t.event}, Token: t.token, Matched: t.sub == uuid.Nil, Fanout: len(t.known) + len(subs)}
	for i, sub := range subs {
		base := &delivery.Record{
			Status: delivery.StatusPending, OrderKey: p.b.orderKeys[event(t.company, t.event)+"/"+sub.String()], EventType: "PAYMENT_PAID", Created: now.UnixMilli(),
		}
		if t.sub != uuid.Nil {
			var err error
			if base, err = delivery.Decode(t.record); err != nil {
				p.b.tb.Fatalf("%s: %v", t, err)
			}
		}
		next := outcomes[i](*base, now)
		next.Version = base.Version
		w.Changes = append(w.Changes, store.Change{Ref: delivery.Ref{Ref: w.Event, Subscriber: sub}, Base: base, Next: &next, InFlight: t.sub != uuid.Nil})
	}
	p.remove(t)
	if p.cut.Load() {
		return
	}
	recorded, wakes, err := p.b.stores.Record(p.b.ctx, now, []store.Write{w})
	if err != nil || recorded[0].Err != nil {
		p.b.tb.Fatalf("record %s: %v, %+v", t, err, recorded)
	}
	p.Wake(p.b.ctx, wakes)
	for i, c := range w.Changes {
		wait := time.Duration(-1)
		if recorded[0].Found[i] == nil && c.Next.Status.Live() {
			wait = max(0, time.UnixMilli(c.Next.Due).Sub(now))
		} else if recorded[0].Found[i] != nil || c.Next.OrderKey != "" {
			wait = 0
		}
		if t.sub != uuid.Nil {
			p.Ended(t.token, t.company, c.Ref.Subscriber, wait)
		} else if wait >= 0 {
			p.Waits(t.token, t.company, c.Ref.Subscriber, wait)
		}
	}
	if w.Matched {
		p.Matched(t.token, t.company, t.event, w.Fanout)
	}
}

// match ends the matching of an event, with the outcomes of its first subscribers that have no delivery yet.
func (p *process) match(name string, outcomes ...outcome) {
	p.b.tb.Helper()
	t := p.find(name)
	var subs []uuid.UUID
	var todo []outcome
	for n, o := range outcomes {
		if sub := subscriber(t.company, n); !slices.Contains(t.known, sub) {
			subs, todo = append(subs, sub), append(todo, o)
		}
	}
	p.write(t, subs, todo)
}

// end ends an attempt of a delivery that waited.
func (p *process) end(name string, o outcome) {
	p.b.tb.Helper()
	t := p.find(name)
	p.write(t, []uuid.UUID{t.sub}, []outcome{o})
}

// accept accepts events at a replica.
func (p *process) accept(company uuid.UUID, ids ...string) {
	p.b.tb.Helper()
	p.b.acceptBy(p.events, company, ids...)
}

// accept accepts events at a process that owns nothing and wakes nobody.
func (b *bench) accept(company uuid.UUID, ids ...string) {
	b.tb.Helper()
	p := publish.New(publish.Options{Client: b.client, Retention: time.Hour, Wake: func(context.Context, []int) {}})
	defer p.Close()
	b.acceptBy(p, company, ids...)
}

func (b *bench) acceptBy(p *publish.Publisher, company uuid.UUID, ids ...string) {
	b.tb.Helper()
	for chunk := range slices.Chunk(ids, 500) {
		var results []publish.Result
		var err error
		eventually(b.tb, "Redis answers", func() bool { // a source sends events again
			results, err = p.Accept(b.ctx, eventsOf(company, chunk...))
			return !errors.Is(err, events.ErrUnavailable)
		})
		if err != nil {
			b.tb.Fatalf("accept: %v", err)
		}
		for _, r := range results {
			if r.Err != nil {
				b.tb.Fatalf("accept %s: %v", r.ID, r.Err)
			}
		}
	}
}

// ids makes up n event ids.
func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("e-%04d", i)
	}
	return out
}

// do runs one Redis command on a key of the test partition.
func (b *bench) do(command, key string, args ...any) any {
	b.tb.Helper()
	v, err := b.client.Do(b.ctx, append([]any{command, partition.Prefix(testPartition) + key}, args...)...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		b.tb.Fatalf("%s %s: %v", command, key, err)
	}
	return v
}

// keys lists the keys of the test partition that begin with a text, without their prefix.
func (b *bench) keys(begin string) (all []string) {
	b.tb.Helper()
	for _, key := range b.client.Keys(b.ctx, partition.Prefix(testPartition)+begin+"*").Val() {
		all = append(all, strings.TrimPrefix(key, partition.Prefix(testPartition)))
	}
	return all
}

// eventually waits for a condition.
func eventually(tb fataler, what string, holds func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(3 * soon); !holds(); {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", 3*soon, what)
		}
		<-time.NewTimer(time.Millisecond).C
	}
}

// happened is when all events have happened.
var happened = time.Now()

// eventsOf makes up events of a company.
func eventsOf(company uuid.UUID, ids ...string) (all []events.Event) {
	for _, id := range ids {
		all = append(all, events.Event{ID: id, CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: happened})
	}
	return all
}
