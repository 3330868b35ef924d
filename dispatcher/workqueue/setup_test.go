package workqueue_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/redelivery"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/history"
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
	testLimit    = 3 // of an endpoint queue
	testHost     = 4 // of a company's endpoint queues on one host
	testFailures = 2 // open a breaker
	testPause    = 2 * time.Millisecond
)

var testPolicy = delivery.Policy{
	Schedule:  []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
	Retention: time.Hour, DeadRetention: 2 * time.Hour, RetryAfterMax: time.Hour,
}

// bench is one Redis with the stores of the system on it.
type bench struct {
	tb         fataler
	ctx        context.Context //nolint:containedctx // the test's
	client     redis.UniversalClient
	events     *publish.Publisher
	stored     *history.Reader
	deliveries *store.Store
	attempts   int
}

// fataler is what testing.TB and rapid.T have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

func newBench(tb testing.TB, client redis.UniversalClient) *bench {
	tb.Helper()
	b := &bench{tb: tb, ctx: tb.Context(), client: client}
	b.stored = history.New(history.Options{Client: client, Retention: time.Hour})
	b.events = publish.New(publish.Options{
		Client: client, Retention: time.Hour, Wake: func(context.Context, []int) {},
	})
	tb.Cleanup(b.events.Close)
	b.breaker(testPause)
	return b
}

// breaker sets for how long a breaker stays open.
func (b *bench) breaker(pause time.Duration) {
	b.deliveries = store.New(store.Options{
		Client: b.client, Policy: testPolicy, BreakerPause: pause, BreakerFailures: testFailures, Now: time.Now,
	})
}

// queue is a replica that claims only when a test calls its claim functions.
func (b *bench) queue(replica string) *workqueue.Queue {
	return workqueue.New(workqueue.Options{
		Client: b.client, Replica: replica, EndpointLimit: testLimit, HostLimit: testHost, BreakerFailures: testFailures,
		Take: func(context.Context, []workqueue.Batch) {},
	})
}

// jobs is a service that adds jobs. The test itself ends them.
func (b *bench) jobs(q *workqueue.Queue) *redelivery.Service {
	return redelivery.New(redelivery.Options{
		Client: b.client, Deliveries: b.deliveries, Events: b.stored, Wake: wakeless{q}.Wake, Now: time.Now, NewID: uuid.New,
	})
}

// quarantine is that of the bench's Redis.
func (b *bench) quarantine() *quarantine.Store {
	return quarantine.New(b.client, wakeless{}.Wake)
}

// wakeless is a queue that enqueues no wake-ups.
type wakeless struct{ *workqueue.Queue }

func (wakeless) Wake(context.Context, []int) {}

// accept stores events with these ids.
func (b *bench) accept(company uuid.UUID, ids ...string) {
	b.tb.Helper()
	for len(ids) > 0 {
		n := min(len(ids), 500)
		batch := make([]events.Event, n)
		for i, id := range ids[:n] {
			batch[i] = events.Event{ID: id, CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: time.Now()}
		}
		results, err := b.events.Accept(b.ctx, batch)
		if err != nil {
			b.tb.Fatalf("accept: %v", err)
		}
		for _, r := range results {
			if r.Err != nil {
				b.tb.Fatalf("accept %s: %v", r.ID, r.Err)
			}
		}
		ids = ids[n:]
	}
}

// ids makes up n event ids.
func ids(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}

// claim claims without bound.
func (b *bench) claim(q *workqueue.Queue) []workqueue.Batch {
	b.tb.Helper()
	return b.claimMost(q, 400).Batches
}

func (b *bench) claimMost(q *workqueue.Queue, most int) workqueue.Claimed {
	b.tb.Helper()
	c := q.ClaimOnce(b.ctx, testPartition, most, nil, 1000)
	if c.Err != nil {
		b.tb.Fatalf("claim: %v", c.Err)
	}
	return c
}

// record writes and fails the test on an error.
func (b *bench) record(replica string, writes ...store.Write) [][]*store.Found {
	b.tb.Helper()
	for i := range writes {
		writes[i].Token = replica
	}
	recorded, _, err := b.deliveries.Record(b.ctx, time.Now(), writes)
	if err != nil {
		b.tb.Fatalf("record: %v", err)
	}
	out := make([][]*store.Found, len(recorded))
	for i, r := range recorded {
		if r.Err != nil {
			b.tb.Fatalf("record: %v", r.Err)
		}
		out[i] = r.Found
	}
	return out
}

func (b *bench) promote(q *workqueue.Queue) bool {
	b.tb.Helper()
	wake, err := q.Promote(b.ctx, testPartition, 200)
	if err != nil {
		b.tb.Fatalf("promote: %v", err)
	}
	return wake
}

func (b *bench) takeOver(q *workqueue.Queue, replica string) int {
	b.tb.Helper()
	n, err := q.TakeOver(b.ctx, testPartition, replica)
	if err != nil {
		b.tb.Fatalf("take over: %v", err)
	}
	return n
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

// eventually waits for a condition.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late.C:
			tb.Fatalf("not within a minute: %s", what)
		}
	}
}

func redisOf(tb testing.TB) redis.UniversalClient { tb.Helper(); return redistest.New(tb) }

func z(score float64, member string) redis.Z { return redis.Z{Score: score, Member: member} }
