package workqueue_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"spendhook/dispatcher/workqueue"
	"spendhook/events/publish"
	"spendhook/internal/partition"
	"spendhook/internal/redistest"
)

// A partition has one wake-up at most, however many events are added.
func TestOneWakeUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	var mu sync.Mutex
	var woken []int
	p := publish.New(publish.Options{Client: b.client, Retention: time.Hour, Wake: func(_ context.Context, partitions []int) {
		mu.Lock()
		defer mu.Unlock()
		woken = append(woken, partitions...)
	}})
	b.events = p
	for i, c := range companies(testPartition, 3) {
		b.accept(c, ids("e"+strconv.Itoa(i), 100)...)
	}
	p.Close() // every commit has called Wake
	if !slices.Equal(woken, []int{testPartition}) {
		t.Errorf("partitions %v were woken", woken)
	}
	b.events = publish.New(publish.Options{Client: b.client, Retention: time.Hour, Wake: func(context.Context, []int) {}})
	t.Cleanup(b.events.Close)
	q := b.queue("r")
	for left := 300; left > 0; {
		c := b.claimMost(q, 100)
		for _, n := range byCompany(c.Batches) {
			left -= n
		}
		flag := b.do("ZSCORE", "due", "") != nil
		if c.Wake != (left > 0) || flag != c.Wake {
			t.Errorf("with %d events left a claim wakes %v, the flag stands %v", left, c.Wake, flag)
		}
	}
}

// A stale wake-up is served once, although several promotes find it.
func TestStaleWakeUpIsServedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q := b.queue("r")
	b.accept(companies(testPartition, 1)[0], "e")
	if b.promote(q) {
		t.Error("a wake-up that is under way was served")
	}
	b.do("ZADD", "due", 0, "")
	if !b.promote(q) || b.promote(q) || b.promote(q) {
		t.Error("a stale wake-up was not served once")
	}
	b.mustBeRight()
}

// The partition's owner serves events for which no wake-up was enqueued.
func TestOwnerServesEventsWithoutWakeUp(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{others: 100}
	start(t, b.client, k, nil)
	b.accept(companies(testPartition, 1)[0], ids("e", 10)...)
	eventually(t, "the events are claimed", func() bool { return len(k.events()) == 10 })
}

// One wake-up starts the processing of a backlog; further wake-ups come from the claims.
func TestWakeUpServesABacklog(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	k := &taker{others: 100}
	q := start(t, b.client, k, slowly("r"))
	b.accept(companies(testPartition, 1)[0], ids("e", 1000)...)
	q.Wake(t.Context(), []int{testPartition})
	eventually(t, "the events are claimed", func() bool { return len(k.events()) == 1000 })
	b.mustBeRight()
}

// A claim reports the companies that it skipped. If that replica does not claim their
// work later, the partition's owner does.
func TestSkippedWorkIsServed(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	company := companies(testPartition, 1)[0]
	full := b.queue("full")
	b.accept(company, "e")
	c := full.ClaimOnce(t.Context(), testPartition, 10, map[uuid.UUID]int{company: 0}, 10)
	if c.Err != nil || c.Wake || !slices.Equal(c.Skipped, []uuid.UUID{company}) {
		t.Fatalf("the claim answered %+v", c)
	}
	b.mustBeRight()
	b.do("ZADD", "due", 0, "~") // as after SKIPPED_MS
	if !b.promote(b.queue("owner")) {
		t.Error("the owner serves nothing")
	}
	if c := b.claimMost(b.queue("owner"), 10); len(c.Batches) != 1 {
		t.Errorf("the owner claimed %+v", c)
	}
	if b.do("ZSCORE", "due", "~") != nil {
		t.Error("the mark stands and nothing is left")
	}
	b.mustBeRight()
}

// A replica notes the companies that it passes by, and claims their work once places are
// free.
func TestPlacesAreFreed(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	company := companies(testPartition, 1)[0]
	k := &taker{others: 100, shares: map[uuid.UUID]int{company: 0}}
	q := start(t, b.client, k, slowly("r"))
	b.accept(company, "a")
	q.Wake(context.Background(), []int{testPartition})
	eventually(t, "the company is skipped", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.skipped[company] > 0
	})
	k.set(0)
	q.Wake(context.Background(), []int{testPartition})
	b.accept(company, "b")
	k.set(100)
	eventually(t, "the work is claimed", func() bool { q.Freed(); return len(k.events()) == 2 })
}

// serviceOff keeps the owner from serving anything without a wake-up.
func serviceOff(o *workqueue.Options) { o.ServiceEvery = time.Hour }

// alone starts a replica, and waits until the only service of the partitions that it owns is over.
func alone(t *testing.T, b *bench, replica string, k *taker, change func(*workqueue.Options)) *workqueue.Queue {
	t.Helper()
	q := start(t, b.client, k, func(o *workqueue.Options) {
		serviceOff(o)
		o.Replica = replica
		if change != nil {
			change(o)
		}
	})
	eventually(t, "the replica owns partitions and has served them", func() bool { return len(q.Owned()) > 0 && q.Idle() })
	return q
}

// shared waits until two replicas have shared all partitions and served them, and lists those of q. A
// replica serves what it has taken before its next heartbeat.
func shared(t *testing.T, b *bench, q, other *workqueue.Queue) (owned []int) {
	t.Helper()
	eventually(t, "the partitions are shared", func() bool {
		owned = q.Owned()
		return len(owned)+len(other.Owned()) == partition.Count
	})
	heartbeats := func() []redis.Z {
		return b.client.ZRangeWithScores(t.Context(), partition.Prefix(0)+"replicas", 0, -1).Val()
	}
	before := heartbeats()
	eventually(t, "both send a heartbeat", func() bool {
		return !slices.ContainsFunc(heartbeats(), func(z redis.Z) bool { return slices.Contains(before, z) })
	})
	eventually(t, "what they took is served", func() bool { return q.Idle() && other.Idle() })
	return owned
}

// A replica that stops leaves the partitions that it still had to serve to another replica, which
// knows nothing else of them: those that were queued, and those of wake-ups that came meanwhile.
func TestStoppingReplicaLeavesWorkToOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	free, here := &taker{others: 100}, &taker{others: 100}
	other := alone(t, b, "free", free, nil)
	taking, release := make(chan struct{}), make(chan struct{})
	q := alone(t, b, "r", here, func(o *workqueue.Options) {
		o.Take = func(context.Context, []workqueue.Batch) {
			close(taking)
			<-release
		}
	})
	owned := shared(t, b, q, other)
	first, queued, late := owned[0], owned[1], owned[2]
	accept := func(p int) { b.accept(companies(p, 1)[0], "e"+strconv.Itoa(p)) }
	accept(first)
	q.Wake(context.Background(), []int{first})
	<-taking
	// From here on the replica claims nothing, also not because of a wake-up that the other replica sent when it gave
	// partitions away, and that came late.
	accept(queued)
	accept(late)
	q.Wake(context.Background(), []int{queued})
	stopped := make(chan struct{})
	go func() {
		q.StopClaiming(context.Background())
		close(stopped)
	}()
	eventually(t, "the replica stops", q.Stopping)
	q.Wake(context.Background(), []int{late})
	close(release)
	<-stopped
	eventually(t, "the other replica has claimed the rest", func() bool { // on a slow machine also the first, as of a lost replica
		got := free.events()
		return slices.Contains(got, "e"+strconv.Itoa(queued)) && slices.Contains(got, "e"+strconv.Itoa(late))
	})
}

// A replica that stops leaves the partitions that wait for places to another replica.
func TestStoppingReplicaWithoutPlacesLeavesWorkToOthers(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	free, here := &taker{others: 100}, &taker{}
	other := alone(t, b, "free", free, nil)
	q := alone(t, b, "r", here, nil)
	p := shared(t, b, q, other)[0]
	b.accept(companies(p, 1)[0], "e")
	q.Wake(context.Background(), []int{p})
	eventually(t, "the partition waits for places", q.Full)
	q.StopClaiming(context.Background())
	eventually(t, "the other replica has claimed", func() bool { return len(free.events()) == 1 })
}

// A replica that cannot read the stored format of one partition leaves all partitions to others.
func TestRefusedReplicaLeavesItsPartitions(t *testing.T) {
	t.Parallel()
	b := newBench(t, redisOf(t))
	q := alone(t, b, "r", &taker{others: 100}, nil)
	token := q.Token(testPartition)
	if err := b.client.Set(t.Context(), partition.Prefix(testPartition)+"format", partition.NewestFormat()+1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	q.Wake(t.Context(), []int{testPartition})
	eventually(t, "the replica leaves", func() bool { return len(q.Owned()) == 0 && q.Refused() != nil })
	eventually(t, "others see that", func() bool {
		return b.client.SIsMember(t.Context(), "sh:{0}:leaving", run(token)).Val()
	})
	eventually(t, "another partition is given away", func() bool {
		return b.client.Exists(t.Context(), partition.Prefix(testPartition+1)+"owner").Val() == 0
	})
}

// Owners that are to be woken while a wake-up is being sent share the next ones.
func TestWakeUpsAreSentTogether(t *testing.T) {
	t.Parallel()
	b, k := newBench(t, redisOf(t)), &taker{others: 100}
	q, p := pair(t, b, k)
	before := q.Wakeups()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	b.client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "publish" {
			select {
			case entered <- struct{}{}:
			default:
			}
			<-release
		}
		return next(ctx, cmd)
	}})
	q.Wake(t.Context(), []int{p})
	<-entered
	for range 64 {
		q.Wake(t.Context(), []int{p})
	}
	close(release)
	q.AwaitWakeups()
	if n := q.Wakeups() - before; n != 2 {
		t.Errorf("%v wake-ups were sent", n)
	}
}
