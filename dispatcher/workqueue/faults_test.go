package workqueue_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

const hour = time.Hour / time.Millisecond

// When Redis's clock goes back by an hour while no replica runs, all work is begun on time.
func TestRedisClockGoesBack(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*bench, uuid.UUID){
		"a rate limit":                       func(b *bench, company uuid.UUID) { b.setting(company, 0, "interval", 20, "burst", 1) },
		"the retry of an ordered delivery":   func(b *bench, company uuid.UUID) { b.setting(company, 0, "ordered", 1) },
		"a first attempt":                    func(*bench, uuid.UUID) {},
		"an endpoint that was not attempted": func(b *bench, company uuid.UUID) { b.setting(company, 0, "until", time.Now().UnixMilli()+int64(hour)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, company := newBench(t), companies(testPartition, 1)[0]
			b.do("HSET", "clock", "last", time.Now().UnixMilli()+int64(hour), "ahead", int64(hour))
			prepare(b, company)
			former := b.launch("former")
			former.accept(company, "e")
			eventually(t, "the event is begun", func() bool { return len(former.ids()) == 1 })
			former.match(event(company, "e"), waits)
			eventually(t, "the delivery is in flight", func() bool { return len(former.has()) == 1 })
			former.end(of(company, "e", 0), fails)
			former.stop()
			b.do("HSET", "clock", "ahead", 0)
			next := b.start(t, "next")
			eventually(t, "the delivery is in flight", func() bool { return len(next.has()) == 1 })
		})
	}
}

// clusterOfTwo is a Redis Cluster of two servers.
func clusterOfTwo(t *testing.T, o redis.ClusterOptions, args ...string) (*bench, []*redistest.Server) {
	t.Helper()
	servers := redistest.Cluster(t, 2, args...)
	o.Addrs = []string{servers[0].Addr(), servers[1].Addr()}
	client := redis.NewClusterClient(&o)
	t.Cleanup(func() { _ = client.Close() })
	return benchOn(t, client), servers
}

// companyAt is a company whose partition is on a server.
func (b *bench) companyAt(t *testing.T, server *redistest.Server) uuid.UUID {
	t.Helper()
	for p := range partition.Count {
		if shard, err := partition.Shard(t.Context(), b.client, p); err != nil {
			t.Fatal(err)
		} else if shard == server.Addr() {
			return companies(p, 1)[0]
		}
	}
	t.Fatal("the server has no partition")
	return uuid.UUID{}
}

// While one server does not answer a turn, the partitions of other servers are served.
func TestHungShardDoesNotBlockOtherShards(t *testing.T) {
	t.Parallel()
	b, servers := clusterOfTwo(t, redis.ClusterOptions{ReadTimeout: time.Hour})
	hung, other := b.companyAt(t, servers[0]), b.companyAt(t, servers[1])
	p := b.start(t, "r")
	eventually(t, "it owns all", func() bool { return p.Loaded() == partition.Count })
	b.accept(hung, "waits")
	servers[0].Pause()
	defer servers[0].Resume()
	p.Wake(t.Context(), []int{partition.Of(hung)})
	all := ids(3)
	for n, id := range all {
		b.accept(other, id)
		eventually(t, "the event is begun", func() bool {
			return len(slices.DeleteFunc(p.ids(), func(id string) bool { return id == "waits" })) == n+1
		})
	}
}

// A replica that starts while a server does not answer serves the partitions of the others, and those of that server once
// it answers.
func TestReplicaStartsWhileAShardIsDown(t *testing.T) {
	t.Parallel()
	b, servers := clusterOfTwo(t, redis.ClusterOptions{ReadTimeout: time.Second, MaxRedirects: -1}, "--cluster-require-full-coverage", "no")
	down, other := b.companyAt(t, servers[0]), b.companyAt(t, servers[1])
	b.accept(down, "a")
	b.accept(other, "b")
	servers[0].Pause()
	defer servers[0].Resume()
	p := b.start(t, "r")
	eventually(t, "the other shard is served", func() bool { return slices.Equal(p.ids(), []string{"b"}) })
	servers[0].Resume()
	eventually(t, "the shard is served", func() bool { return len(p.ids()) == 2 })
}

// While Redis does not answer for longer than the heartbeat time-out, no replica counts another one as lost.
func TestNoReplicaIsLostWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	client := redis.NewClient(&redis.Options{
		Network: "unix", Addr: server.Socket(), ReadTimeout: 20 * time.Millisecond, MaxRetries: -1, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	b := benchOn(t, client)
	var failed [2]atomic.Int64
	var all [2]*process
	var of [2]uuid.UUID // a company of each
	var tokens [2]string
	for i := range all {
		all[i] = b.start(t, "r"+strconv.Itoa(i), func(o *workqueue.Options) { o.HeartbeatEvery = 50 * time.Millisecond })
		all[i].client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			err := next(ctx, cmds)
			if err != nil {
				failed[i].Add(1)
			}
			return err
		}})
	}
	for i, p := range all {
		eventually(t, "both replicas own partitions", func() bool { n := len(p.Owned()); return n > 0 && n < partition.Count })
		of[i] = companies(p.Owned()[0], 1)[0]
		tokens[i] = p.Token(of[i])
	}
	server.Pause()
	for i := range failed {
		eventually(t, "calls fail", func() bool { return failed[i].Load() > 40 })
	}
	server.Resume()
	for _, company := range of {
		b.accept(company, "e")
	}
	for i, p := range all {
		eventually(t, "the event is begun", func() bool { return len(p.ids()) == 1 })
		if after := p.Token(of[i]); after != tokens[i] {
			t.Errorf("replica %d had the token %q, now %q", i, tokens[i], after)
		}
	}
}

// While the slot of a partition moves to another server, nothing of it begins twice; after that, all of it has begun.
func TestSlotIsBeingMoved(t *testing.T) {
	t.Parallel()
	b, servers := clusterOfTwo(t, redis.ClusterOptions{MaxRedirects: 3})
	company := companies(testPartition, 1)[0]
	p := b.start(t, "r")
	eventually(t, "it owns all", func() bool { return p.Loaded() == partition.Count })
	b.accept(company, "a", "b")
	eventually(t, "the events are begun", func() bool { return len(p.ids()) == 2 })
	p.match(event(company, "a"), waits)
	eventually(t, "the delivery is in flight", func() bool { return slices.Contains(p.has(), of(company, "a", 0)) })
	done := halfMoved(t, servers, partition.Prefix(testPartition)+"ei:"+company.String())
	p.Look()
	done()
	eventually(t, "an event is accepted", func() bool {
		results, err := p.events.Accept(t.Context(), eventsOf(company, "c"))
		return err == nil && results[0].Err == nil
	})
	eventually(t, "it is begun", func() bool { return slices.Contains(p.ids(), "c") })
	p.match(event(company, "b"), waits)
	eventually(t, "the next delivery is in flight", func() bool { return slices.Contains(p.has(), of(company, "b", 0)) })
	p.settle()
	if got, want := p.has(), []string{of(company, "a", 0), of(company, "b", 0), event(company, "c")}; !slices.Equal(got, want) {
		t.Errorf("begun %v, want %v", got, want)
	}
}

// halfMoved moves one key of a slot to the other server. done moves the others.
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

// A Redis that takes nothing new still lets accepted work be begun, recorded, handed over and finished.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	b, company := benchOn(t, server.Client()), companies(testPartition, 1)[0]
	p := b.launch("first")
	p.accept(company, "a", "b", "c")
	eventually(t, "the events are begun", func() bool { return len(p.ids()) == 3 })
	p.match(event(company, "a"), waits, waits)
	eventually(t, "the deliveries are in flight", func() bool { return len(p.has()) == 4 })
	if err := b.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	p.match(event(company, "b"), fails)
	p.end(of(company, "a", 0), fails)
	p.Leave(t.Context())
	next := b.start(t, "next")
	p.match(event(company, "c"), succeeds)
	p.stop()
	for range 3 {
		eventually(t, "a delivery is in flight", func() bool { return len(next.has()) > 0 })
		next.end(next.has()[0], succeeds)
		next.settle()
	}
	if got := next.has(); len(got) > 0 || len(b.keys("e[qf]:")) > 0 {
		t.Errorf("left: %v, %v", got, b.keys("e[qf]:"))
	}
}

// A failover of Redis that forgets events leaves nothing behind that is accepted afterwards, though it has the numbers of
// those that are forgotten.
func TestFailoverForgetsEvents(t *testing.T) {
	t.Parallel()
	b, company := newBench(t), companies(testPartition, 1)[0]
	p := b.start(t, "r")
	p.accept(company, "kept")
	eventually(t, "the event is begun", func() bool { return len(p.ids()) == 1 })
	p.match(event(company, "kept"), succeeds)
	before := b.do("HGETALL", "c:"+company.String()).(map[any]any)
	b.accept(company, "forgotten")
	eventually(t, "the event is begun", func() bool { return len(p.ids()) == 1 })
	for key, value := range before {
		b.do("HSET", "c:"+company.String(), key, value)
	}
	b.do("ZREM", "ei:"+company.String(), "forgotten")
	b.do("DEL", "e:"+company.String()+":forgotten")
	b.accept(company, "later")
	eventually(t, "the later event is begun", func() bool { return slices.Contains(p.ids(), "later") })
	p.match(event(company, "forgotten"), succeeds)
	p.match(event(company, "later"), succeeds)
	p.settle()
	eventually(t, "nothing is open", func() bool { p.Look(); return len(b.keys("active")) == 0 })
}

// When Redis starts again, it may have forgotten writes: the owner reads everything again, and begins what is not matched.
func TestRedisForgetsOutcomes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	b, company := benchOn(t, server.Client()), companies(testPartition, 1)[0]
	p := b.start(t, "r")
	p.accept(company, "a", "b", "c")
	eventually(t, "the events are begun", func() bool { return len(p.ids()) == 3 })
	p.match(event(company, "a"), fails)
	p.match(event(company, "b"), succeeds)
	eventually(t, "the delivery is in flight", func() bool { return len(p.has()) == 2 })
	p.end(of(company, "a", 0), succeeds)
	p.settle()
	server.Kill()
	server.Restart()
	b.do("SETRANGE", "e:"+company.String()+":b", 0, "R")
	b.do("HDEL", "c:"+company.String(), "cursor")
	b.do("HDEL", "d:"+company.String()+"/b", subscriber(company, 0).String())
	eventually(t, "the event is begun again", func() bool { return slices.Contains(p.ids(), "b") })
	p.settle()
	if got, want := p.has(), []string{event(company, "b"), event(company, "c")}; !slices.Equal(got, want) {
		t.Errorf("begun %v, want %v", got, want)
	}
	p.match(event(company, "c"), succeeds)
	p.match(event(company, "b"), succeeds)
	eventually(t, "nothing is open", func() bool { p.Look(); return len(b.keys("active")) == 0 })
}

// The lag of a replica is the time since it looked at what it owns.
func TestSchedulerLag(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := b.launch("r")
	eventually(t, "it owns all", func() bool { return p.Loaded() == partition.Count })
	eventually(t, "it looks at them", func() bool { return p.Lag() < soon })
	p.stop()
	q := workqueue.New(workqueue.Options{Client: b.client, Replica: "r", Admission: p, Take: p.take})
	if lag := q.Lag(); lag != 0 {
		t.Errorf("a replica that owns nothing lags by %v", lag)
	}
}

// A company that gets no turn because it holds its share counts as skipped since then.
func TestSkippedSince(t *testing.T) {
	t.Parallel()
	b, all := newBench(t), companies(testPartition, 2)
	p := b.start(t, "r")
	eventually(t, "it owns all", func() bool { return p.Loaded() == partition.Count })
	began := time.Now()
	p.share(all[0], 0)
	b.accept(all[0], "a")
	b.accept(all[1], "b")
	eventually(t, "the other company's event is begun", func() bool { return slices.Equal(p.ids(), []string{"b"}) })
	eventually(t, "the company is skipped", func() bool { return p.SkippedSince(all[0], began) })
	if p.SkippedSince(all[1], began) || p.SkippedSince(all[0], time.Now().Add(time.Hour)) {
		t.Error("SkippedSince does not match the company and the time")
	}
}
