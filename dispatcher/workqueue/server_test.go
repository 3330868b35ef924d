package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/delivery/attempt"
	"spendhook/dispatcher/delivery/store"
	"spendhook/dispatcher/workqueue"
	"spendhook/dispatcher/workqueue/backlog"
	"spendhook/dispatcher/workqueue/quarantine"
	"spendhook/events"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// While Redis is at its memory limit, accepted work is processed to its end, and no event
// is accepted.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	b := newBench(t, server.Client())
	q, all := b.queue("r"), companies(testPartition, 2)
	s := b.jobs(q)
	b.overflowed(q, all[0], 3)
	b.accept(all[1], "direct", "damaged", "other")
	if _, err := s.Erase(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	if err := b.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	results, err := b.events.Accept(t.Context(), []events.Event{{ID: "late", CompanyUUID: all[0], Type: "PAYMENT_PAID", Timestamp: time.Now()}})
	if err != nil || len(results) != 1 || !errors.Is(results[0].Err, publish.ErrStorageFull) {
		t.Errorf("accepting answered %+v, %v", results, err)
	}
	another := workqueue.New(workqueue.Options{Client: b.client, Replica: "b", Admission: &taker{}, Take: (&taker{}).take})
	if err := another.Start(t.Context()); err != nil {
		t.Errorf("start: %v", err)
	}
	another.StopClaiming(context.Background())
	if err := another.Release(t.Context()); err != nil {
		t.Error(err)
	}
	b.claim(q)
	b.takeOver(b.queue("s"), q.Name())
	q.Rename()
	left := map[string]bool{}
	for range 6 {
		b.promote(q)
		for _, batch := range b.claim(q) {
			for _, d := range batch.Deliveries {
				b.record(q.Name(), b.attempted(batch.Company, d, attempt.ClassNone, store.Reached))
			}
			for _, job := range batch.Jobs {
				if err := q.EndJob(t.Context(), q.Name(), batch.Company, job, -1); err != nil {
					t.Error(err)
				}
			}
			for _, e := range batch.Events {
				left[e.ID] = true
				if e.ID == "damaged" {
					if err := b.quarantine().Move(t.Context(), q.Name(), quarantine.Entry{Company: batch.Company, EventID: e.ID}); err != nil {
						t.Error(err)
					}
					continue
				}
				one := workqueue.Batch{Company: batch.Company, Events: []workqueue.Event{e}}
				b.match(q, []workqueue.Batch{one}, map[uuid.UUID]int{batch.Company: 1})
			}
		}
	}
	if state := b.read(); len(state.places()) > 0 || len(left) != 3 {
		t.Errorf("%v were claimed, %v is left", left, state.places())
	}
	if _, err := backlog.New(b.client, 0, q.SkippedSince).Measure(t.Context(), []int{testPartition}, 10); err != nil {
		t.Error(err)
	}
}

// While a slot is being moved, each call is refused before it runs, because its keys may be
// on either server.
func TestSlotIsBeingMoved(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr(), servers[1].Addr()}, MaxRedirects: 3})
	t.Cleanup(func() { _ = client.Close() })
	b := newBench(t, client)
	q, company := b.queue("r"), companies(testPartition, 1)[0]
	b.overflowed(q, company, 3)
	d := deliveriesOf(b.claim(q))[0]
	b.accept(company, "a", "b")
	done := halfMoved(t, servers, partition.Prefix(testPartition)+"q:"+company.String())
	before := contentsOf(t, servers)
	w := b.attempted(company, d, attempt.ClassHTTP5xx, store.Reached)
	for name, refused := range map[string]error{
		"claim":      q.ClaimOnce(t.Context(), testPartition, 10, nil, 10).Err,
		"record":     b.recordErr(w),
		"delivered":  b.recordErr(store.Write{Event: events.Ref{Company: company, ID: "a"}, Matched: true}),
		"end job":    q.EndJob(t.Context(), q.Name(), company, uuid.New(), 0),
		"give up":    q.Requeue(t.Context(), workqueue.Batch{Company: company, Token: q.Name(), Deliveries: []workqueue.Delivery{d}}),
		"quarantine": b.quarantine().Move(t.Context(), q.Name(), quarantine.Entry{Company: company, EventID: d.EventID, Subscriber: &d.Subscriber}),
		"take over":  second(q.TakeOver(t.Context(), testPartition, "other.1 1")),
		"promote":    second(q.Promote(t.Context(), testPartition, 10)),
		"accept":     b.acceptErr(company, "late"),
	} {
		if refused == nil {
			t.Errorf("%s ran", name)
		} else if !strings.Contains(refused.Error(), "TRYAGAIN") && !strings.Contains(refused.Error(), "ASK") {
			t.Errorf("%s was refused by %v", name, refused)
		}
	}
	if after := contentsOf(t, servers); !slices.Equal(before, after) {
		t.Errorf("a refused call changed the keys: %v, before %v", after, before)
	}
	done()
	eventually(t, "the new server answers", func() bool { return b.recordErr(w) == nil })
	if len(b.claim(q)) == 0 {
		t.Error("after the move nothing is claimed")
	}
}

// companyAt is a company of the first partition of a server.
func companyAt(t *testing.T, client redis.UniversalClient, server *redistest.Server) uuid.UUID {
	t.Helper()
	for p := range partition.Count {
		if shard, err := partition.Shard(t.Context(), client, p); err != nil {
			t.Fatal(err)
		} else if shard == server.Addr() {
			return companies(p, 1)[0]
		}
	}
	t.Fatal("the server has no partition")
	return uuid.UUID{}
}

// While one server does not answer a claim, the partitions of other servers are served.
func TestHungShardDoesNotBlockOtherShards(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr(), servers[1].Addr()}, ReadTimeout: time.Hour,
	})
	t.Cleanup(func() { _ = client.Close() })
	b, k := newBench(t, client), &taker{others: 100}
	hung, other := companyAt(t, client, servers[0]), companyAt(t, client, servers[1])
	q := start(t, client, k, nil)
	servers[0].Pause()
	defer servers[0].Resume()
	q.Wake(context.Background(), []int{partition.Of(hung)})
	for n := range 3 {
		b.accept(other, ids("e"+strconv.Itoa(n), 10)...)
		q.Wake(context.Background(), []int{partition.Of(other)})
		eventually(t, "the events are claimed", func() bool { return len(k.events()) == 10*(n+1) })
	}
}

func second[T any](_ T, err error) error { return err }

func (b *bench) recordErr(w store.Write) error {
	recorded, _, err := b.deliveries.Record(b.ctx, time.Now(), []store.Write{w})
	if err != nil {
		return err
	}
	return recorded[0].Err
}

func (b *bench) acceptErr(company uuid.UUID, id string) error {
	return second(b.events.Accept(b.ctx, []events.Event{{ID: id, CompanyUUID: company, Type: "PAYMENT_PAID", Timestamp: time.Now()}}))
}

// halfMoved starts to move the slot of a key, moves the key, and returns a function that
// completes the move.
func halfMoved(t *testing.T, servers []*redistest.Server, key string) (done func()) {
	t.Helper()
	slot := redistest.SlotOf(t, servers[0], key)
	from, to := servers[0], servers[1]
	if slot >= 8192 {
		from, to = to, from
	}
	f, g := from.Client(), to.Client()
	run := func(c redis.UniversalClient, args ...any) string {
		text, err := c.Do(t.Context(), args...).Text()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return text
	}
	source, target := run(f, "CLUSTER", "MYID"), run(g, "CLUSTER", "MYID")
	run(g, "CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	run(f, "CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	host, port, _ := strings.Cut(to.Addr(), ":")
	migrate := func(keys ...string) {
		args := []any{"MIGRATE", host, port, "", 0, 5000, "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		run(f, args...)
	}
	migrate(key)
	return func() {
		for {
			keys, err := f.ClusterGetKeysInSlot(t.Context(), slot, 100).Result()
			if err != nil {
				t.Fatal(err)
			}
			if len(keys) == 0 {
				break
			}
			migrate(keys...)
		}
		for _, c := range []redis.UniversalClient{g, f} {
			run(c, "CLUSTER", "SETSLOT", slot, "NODE", target)
		}
	}
}

// contentsOf is every key and its value, of all servers.
func contentsOf(t *testing.T, servers []*redistest.Server) (out []string) {
	t.Helper()
	for i, s := range servers {
		c := s.Client()
		keys, err := c.Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			dump, _ := c.Dump(t.Context(), k).Result() // a key in the slot that moves is refused by its new server
			out = append(out, fmt.Sprintf("%d %s %q", i, k, dump))
		}
	}
	slices.Sort(out)
	return out
}
