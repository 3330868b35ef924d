package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// replicasKey is the heartbeats of a Redis that is no Cluster.
const replicasKey = "sh:{0}:replicas"

// run is the run that made a token.
func run(token string) string {
	name, _, _ := strings.Cut(token, " ")
	return name
}

// heartbeat writes one heartbeat of the replica that made a token. It sends no others.
func (b *bench) heartbeat(replica string) {
	b.tb.Helper()
	if err := b.client.ZAdd(b.ctx, replicasKey, redis.Z{Score: 1, Member: run(replica)}).Err(); err != nil {
		b.tb.Fatalf("heartbeat: %v", err)
	}
}

// score is the last heartbeat of the replica that made a token.
func (b *bench) score(replica string) float64 {
	return b.client.ZScore(b.ctx, replicasKey, run(replica)).Val()
}

// slowly sends heartbeats so seldom that no replica is lost on a busy machine.
func slowly(replica string) func(*workqueue.Options) {
	return func(o *workqueue.Options) {
		o.Replica, o.HeartbeatEvery, o.ServiceEvery = replica, 200*time.Millisecond, 50*time.Millisecond
	}
}

// A live replica claims the work that a lost replica had in flight. No live replica is
// taken over.
func TestLostReplicaIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	lost, company := b.queue("lost"), companies(testPartition, 1)[0]
	b.accept(company, ids("e", 10)...)
	b.heartbeat(lost.Name())
	b.claim(lost)
	k := &taker{others: 100}
	one, two := start(t, b.client, k, slowly("one")), start(t, b.client, k, slowly("two"))
	eventually(t, "the work is claimed", func() bool { return len(k.events()) == 10 })
	eventually(t, "the lost replica is forgotten", func() bool { return b.score(lost.Name()) == 0 })
	if c := lost.ClaimAs(t.Context(), lost.Name(), testPartition, 100); !c.NotOwner {
		t.Errorf("a claim of the lost replica answered %+v", c)
	}
	for _, q := range []*workqueue.Queue{one, two} {
		if len(q.Owned()) == 0 {
			t.Error("a live replica was taken over")
		}
	}
	b.mustBeRight()
}

// A replica takes over the work of its former run when it starts.
func TestFormerRunIsTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	former, company := b.queue("r"), companies(testPartition, 1)[0]
	b.accept(company, ids("e", 10)...)
	b.heartbeat(former.Name())
	b.claim(former)
	b.heartbeat("other.1") // not known to be lost
	q := workqueue.New(workqueue.Options{
		Client: b.client, Replica: "r", Admission: &taker{}, Take: (&taker{}).take, HeartbeatEvery: time.Hour,
	})
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the former run is taken over", func() bool { return len(b.mustBeRight().under("n:")) == 0 })
	if b.score("other.1") == 0 {
		t.Error("another replica was taken over")
	}
	q.StopClaiming(context.Background())
	if err := q.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Heartbeats never expire: the notes of replicas that were all down for long are found by them.
func TestHeartbeatsDoNotExpire(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	start(t, b.client, &taker{}, nil)
	for _, key := range []string{replicasKey, "sh:{0}:reads"} {
		if ttl := b.client.PTTL(t.Context(), key).Val(); ttl != -1 {
			t.Errorf("%s expires in %v", key, ttl)
		}
	}
}

// A replica starts while a shard is unavailable. When the shard is back, the replica serves it and takes
// over the work of its former run there.
func TestReplicaStartsWhileAShardIsDown(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2, "--cluster-require-full-coverage", "no")
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr(), servers[1].Addr()}, ReadTimeout: time.Second, MaxRedirects: -1,
	})
	t.Cleanup(func() { _ = client.Close() })
	b, k := newBench(t, client), &taker{others: 100}
	down, there := companyAt(t, client, servers[0]), companyAt(t, client, servers[1])
	b.accept(down, "a")
	former, p := b.queue("r"), partition.Of(down)
	if c := former.ClaimOnce(t.Context(), p, 10, nil, 10); len(c.Batches) != 1 {
		t.Fatalf("the former run claimed %+v", c)
	}
	if err := client.ZAdd(t.Context(), partition.Prefix(p)+"replicas", redis.Z{Score: 1, Member: run(former.Name())}).Err(); err != nil {
		t.Fatal(err)
	}
	b.accept(there, "b")
	servers[0].Pause()
	defer servers[0].Resume()
	q := start(t, client, k, nil)
	q.Wake(context.Background(), []int{partition.Of(there)})
	eventually(t, "the other shard is served", func() bool { return slices.Equal(k.events(), []string{"b"}) })
	servers[0].Resume()
	eventually(t, "the shard is served", func() bool { return slices.Equal(k.events(), []string{"a", "b"}) })
}

// A shard that hangs does not delay the release of the others.
func TestReleaseOfAShardDoesNotWaitForAnother(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2)
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr(), servers[1].Addr()}, ReadTimeout: time.Hour,
	})
	t.Cleanup(func() { _ = client.Close() })
	hung, other := companyAt(t, client, servers[0]), companyAt(t, client, servers[1])
	b := newBench(t, client)
	b.accept(hung, "a")
	b.accept(other, "b")
	k := &taker{others: 100}
	q := start(t, client, k, func(o *workqueue.Options) {
		o.HeartbeatEvery, o.ServiceEvery = time.Hour, time.Hour // Release waits for a heartbeat that hangs
	})
	q.Wake(context.Background(), []int{partition.Of(hung), partition.Of(other)})
	eventually(t, "the events are claimed", func() bool { return len(k.events()) == 2 })
	q.StopClaiming(t.Context())
	servers[0].Pause()
	defer servers[0].Resume()
	released := make(chan error, 1)
	go func() { released <- q.Release(t.Context()) }()
	eventually(t, "the event of the other shard is requeued", func() bool {
		return client.LLen(t.Context(), partition.Key(other, "q:"+other.String())).Val() == 1
	})
	servers[0].Resume()
	if err := <-released; err != nil {
		t.Error(err)
	}
}

// failures counts the heartbeats that failed.
type failures struct {
	slog.Handler
	n atomic.Int64
}

func (f *failures) Enabled(context.Context, slog.Level) bool { return true }
func (f *failures) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "heartbeat failed" {
		f.n.Add(1)
	}
	return nil
}

// While Redis answers no replica, no replica becomes lost.
func TestNoReplicaIsLostWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	b := newBench(t, server.Client())
	o := &redis.Options{Network: "unix", Addr: server.Socket(), ReadTimeout: 20 * time.Millisecond, MaxRetries: -1, ContextTimeoutEnabled: true}
	failed := [2]failures{{Handler: slog.DiscardHandler}, {Handler: slog.DiscardHandler}}
	var queues []*workqueue.Queue
	for i := range failed {
		client := redis.NewClient(o)
		t.Cleanup(func() { _ = client.Close() })
		queues = append(queues, start(t, client, &taker{}, func(o *workqueue.Options) {
			slowly(fmt.Sprint("r", i))(o)
			o.Logger = slog.New(&failed[i])
		}))
	}
	var owned [2]int
	var tokens [2]string
	for i, q := range queues {
		eventually(t, "both replicas own partitions", func() bool { n := len(q.Owned()); return n > 0 && n < partition.Count })
		owned[i] = q.Owned()[0]
		tokens[i] = q.Token(owned[i])
	}
	beaten := func(times int) {
		var last [2]float64
		for range times {
			eventually(t, "both replicas have sent a heartbeat", func() bool {
				now := [2]float64{b.score(tokens[0]), b.score(tokens[1])}
				if now[0] <= last[0] || now[1] <= last[1] {
					return false
				}
				last = now
				return true
			})
		}
	}
	beaten(2)
	server.Pause()
	for i := range failed {
		before := failed[i].n.Load()
		eventually(t, "heartbeats fail", func() bool { return failed[i].n.Load() > before+8 })
	}
	server.Resume()
	beaten(10)
	for i, q := range queues {
		if after := q.Token(owned[i]); after != tokens[i] {
			t.Errorf("replica %d owned partition %d under %q, now %q", i, owned[i], tokens[i], after)
		}
	}
}

// A replica goes on sending heartbeats during a takeover; else it would be lost too.
func TestHeartbeatGoesOnDuringATakeover(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	b := newBench(t, server.Client())
	lost, client := b.queue("lost"), server.Client()
	b.heartbeat(lost.Name())
	b.accept(companies(testPartition, 1)[0], "e")
	b.claim(lost)
	var name atomic.Pointer[string]
	nextHeartbeat := func(ctx context.Context) bool {
		for first := b.score(*name.Load()); b.score(*name.Load()) == first; {
			select {
			case <-ctx.Done():
				return false
			case <-time.After(time.Millisecond):
			}
		}
		return true
	}
	// The calls that take the replica over wait for two heartbeats.
	client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		args := cmds[0].Args()
		if len(args) > 6 && args[1] == workqueue.RequeueHash() && args[6] == lost.Name() && ctx.Err() == nil {
			for range 2 {
				if !nextHeartbeat(ctx) {
					return ctx.Err()
				}
			}
		}
		return next(ctx, cmds)
	}})
	k := &taker{others: 100}
	none := ""
	name.Store(&none)
	q := start(t, client, k, nil)
	own := q.Token(q.Owned()[0])
	name.Store(&own)
	eventually(t, "the work is claimed", func() bool { return len(k.events()) == 1 })
}

const manyNotes = `for i = ARGV[3], ARGV[4] do
  redis.call('SET', ARGV[1] .. 'e:' .. ARGV[2] .. ':e' .. i, 'R')
  redis.call('HSET', ARGV[1] .. 'n:lost', ARGV[2] .. '/e' .. i, 1)
end`

// 100,000 notes are taken over in pages, so that no call holds up Redis.
func TestManyNotesAreTakenOver(t *testing.T) {
	t.Parallel()
	b := newBench(t, redistest.Start(t, redistest.Options{}).Client())
	const notes, page = 100_000, 500
	company := companies(testPartition, 1)[0]
	for i := 0; i < notes; i += page {
		args := []any{partition.Prefix(testPartition), company.String(), i, i + page - 1}
		if err := b.client.Eval(t.Context(), manyNotes, nil, args...).Err(); !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	var calls atomic.Int64
	b.client.AddHook(redistest.Hook{Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		if args := cmds[0].Args(); len(args) > 1 && args[0] == "evalsha" && args[1] == workqueue.RequeueHash() {
			calls.Add(1)
		}
		return next(ctx, cmds)
	}})
	if n := b.takeOver(b.queue("r"), "lost"); n != notes {
		t.Errorf("%d notes were taken over", n)
	}
	if n := calls.Load(); n < notes/page || n > notes/page+2 {
		t.Errorf("in %d calls", n)
	}
	if n := b.do("LLEN", "q:"+company.String()); n != int64(notes) {
		t.Errorf("%v events are ready", n)
	}
	if n := b.do("EXISTS", "n:lost"); n != int64(0) {
		t.Error("notes are left")
	}
}

// A replica that serves its partitions has no lag, and one alone sees itself.
func TestSchedulerLag(t *testing.T) {
	t.Parallel()
	q := workqueue.New(workqueue.Options{Client: redisOf(t), Replica: "r", Admission: &taker{}, Take: (&taker{}).take})
	if q.Lag() != 0 {
		t.Error("a replica that owns nothing lags")
	}
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it owns all partitions", func() bool { return len(q.Owned()) == partition.Count })
	eventually(t, "it serves them", func() bool { return q.Lag() < time.Minute })
	q.StopClaiming(t.Context())
	if err := q.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}
