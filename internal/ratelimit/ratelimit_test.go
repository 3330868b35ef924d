package ratelimit_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"spendhook/internal/ratelimit"
	"spendhook/internal/redistest"
	"spendhook/internal/waittest"
)

// clock is a time that tests move.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }
func frozen() (*clock, func() time.Time) { c := newClock(); return c, c.now }
func take(l *ratelimit.Limiter, limit ratelimit.Limit) ratelimit.Decision {
	return l.Take(context.Background(), limit, "acme", 1)
}

// slow has a rate so low that the real clock of Redis adds nothing in a test.
var slow = ratelimit.Limit{Name: "slow", PerSecond: 0.001, Burst: 100}

// pass simulates elapsed time for a bucket in Redis: a test cannot change the clock of Redis.
func pass(t *testing.T, c redis.UniversalClient, d time.Duration) {
	t.Helper()
	keys, err := c.Keys(t.Context(), "sh:limit:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %v, %v", keys, err)
	}
	state, err := c.Get(t.Context(), keys[0]).Result()
	if err != nil {
		t.Fatal(err)
	}
	at, call, _ := strings.Cut(state, " ")
	full, err := strconv.ParseInt(at, 10, 64)
	if err == nil {
		err = c.Set(t.Context(), keys[0], strconv.FormatInt(full-d.Microseconds(), 10)+" "+call, redis.KeepTTL).Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func admitted(l *ratelimit.Limiter, limit ratelimit.Limit, tries int) (count int) {
	for range tries {
		if take(l, limit).OK {
			count++
		}
	}
	return count
}

func TestABurstAndThenTheRate(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{true, false} {
		t.Run("shared "+strconv.FormatBool(shared), func(t *testing.T) {
			t.Parallel()
			var client redis.UniversalClient
			if shared {
				client = redistest.New(t)
			}
			c, now := frozen()
			l := ratelimit.New(client, now)
			if got := admitted(l, slow, 150); got != 100 {
				t.Fatalf("%d of 150 at once, want the burst of 100", got)
			}
			d := take(l, slow)
			if d.OK || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > 1000*time.Second {
				t.Fatalf("refused with %+v", d)
			}
			c.advance(10_000 * time.Second)
			if shared {
				pass(t, client, 10_000*time.Second)
			}
			if got := admitted(l, slow, 50); got != 10 {
				t.Fatalf("%d after the time of 10 tokens", got)
			}
		})
	}
}

func TestRetryAfterIsWhenItIsWorthTryingAgain(t *testing.T) {
	t.Parallel()
	c, now := frozen()
	l := ratelimit.New(nil, now)
	limit := ratelimit.Limit{Name: "n", PerSecond: 3, Burst: 7}
	admitted(l, limit, 100)
	d := take(l, limit)
	c.advance(d.RetryAfter - time.Microsecond)
	if take(l, limit).OK {
		t.Error("admitted before RetryAfter")
	}
	c.advance(time.Microsecond)
	if !take(l, limit).OK {
		t.Error("refused after RetryAfter")
	}
}

func TestRemainingCountsDown(t *testing.T) {
	t.Parallel()
	for _, client := range []redis.UniversalClient{nil, redistest.New(t)} {
		_, now := frozen()
		l := ratelimit.New(client, now)
		for want := 99; want >= 0; want-- {
			if d := take(l, slow); d.Remaining != want || !d.OK {
				t.Fatalf("%+v, want %d remaining", d, want)
			}
		}
	}
}

// onEach runs the test with buckets in Redis and with those of one process.
func onEach(t *testing.T, test func(t *testing.T, client redis.UniversalClient)) {
	t.Helper()
	for _, shared := range []bool{true, false} {
		t.Run("shared "+strconv.FormatBool(shared), func(t *testing.T) {
			t.Parallel()
			var client redis.UniversalClient
			if shared {
				client = redistest.New(t)
			}
			test(t, client)
		})
	}
}

// A request for several tokens gets all or none, in any order of sizes.
func TestSeveralTokensAtOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, client redis.UniversalClient) {
		t.Helper()
		_, now := frozen()
		l := ratelimit.New(client, now)
		for i, c := range []struct {
			take, give, remaining int
			ok                    bool
		}{
			{take: 1, ok: true, remaining: 99},
			{take: 59, ok: true, remaining: 40},
			{take: 41, remaining: 40},
			{take: 100, remaining: 40},
			{take: 40, ok: true, remaining: 0},
			{take: 1, remaining: 0},
			{give: 60, ok: true, remaining: 60},
			{take: 61, remaining: 60},
			{take: 3, ok: true, remaining: 57},
			{give: 3, ok: true, remaining: 60},
			{give: 40, ok: true, remaining: 100},
			{take: 5000, ok: true, remaining: 0}, // of a full bucket
			{give: 1, ok: true, remaining: 1},
			{take: 5000, remaining: 1},
			{take: 1, ok: true, remaining: 0},
			{give: 5000, ok: true, remaining: 100},
			{take: 100, ok: true, remaining: 0},
		} {
			var d ratelimit.Decision
			if c.give > 0 {
				d = l.Give(t.Context(), slow, "acme", c.give)
			} else {
				d = l.Take(t.Context(), slow, "acme", c.take)
			}
			if d.OK != c.ok || d.Remaining != c.remaining || (d.RetryAfter > 0) == c.ok {
				t.Fatalf("step %d: %+v, want %+v", i, d, c)
			}
		}
	})
}

// A refused large request does not cause the refusal of small ones.
func TestRefusedLargeRequestDoesNotBlockSmallOnes(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	calls := countCalls(client, nil)
	_, now := frozen()
	l := ratelimit.New(client, now)
	l.Take(t.Context(), slow, "acme", 50)
	var last ratelimit.Decision
	for range 20 {
		last = l.Take(t.Context(), slow, "acme", 60)
	}
	if last.OK || last.RetryAfter < 9000*time.Second || last.RetryAfter > 10_000*time.Second {
		t.Errorf("%+v", last)
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("%d round trips", n)
	}
	if d := l.Take(t.Context(), slow, "acme", 50); !d.OK {
		t.Errorf("%+v", d)
	}
}

// Over any time, the limiters of one Redis admit at most the limit plus the earlier lease of
// each.
func TestReplicasShareALimit(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	limit := ratelimit.Limit{Name: "shared", PerSecond: 2000, Burst: 400} // a chunk is 40
	const replicas, window = 4, 700 * time.Millisecond
	var count atomic.Int64
	var group sync.WaitGroup
	started := time.Now()
	for range replicas {
		l := ratelimit.New(client, nil)
		for _, n := range []int{1, 17, 90} { // of a chunk, of two, of more
			group.Go(func() {
				for time.Since(started) < window || count.Load() < int64(limit.Burst) {
					if d := l.Take(t.Context(), limit, "acme", n); d.OK {
						count.Add(int64(n))
						if n == 17 {
							l.Give(t.Context(), limit, "acme", 5)
							count.Add(-5)
						}
					} else {
						<-time.After(min(d.RetryAfter, 5*time.Millisecond))
					}
				}
			})
		}
	}
	group.Wait()
	most := int64(limit.Burst) + int64(time.Since(started).Seconds()*limit.PerSecond) + 1
	if got := count.Load(); got > most || got < int64(limit.Burst) {
		t.Errorf("%d admitted, want %d to %d", got, limit.Burst, most)
	} else {
		t.Logf("%d admitted, of at most %d", got, most)
	}
}

func TestEachKeyAndNameHasItsOwnBucket(t *testing.T) {
	t.Parallel()
	l := ratelimit.New(redistest.New(t), nil)
	admitted(l, slow, 101)
	other := slow
	other.Name = "other"
	if !take(l, other).OK || !l.Take(t.Context(), slow, "umbrella", 1).OK {
		t.Error("another bucket is empty too")
	}
}

func TestKeysExpireAndTellNothing(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	limit := ratelimit.Limit{Name: "n", PerSecond: 10, Burst: 100}
	ratelimit.New(client, nil).Take(t.Context(), limit, "client-4711", 1)
	keys := client.Keys(t.Context(), "*").Val()
	if len(keys) != 1 || len(keys[0]) > 60 {
		t.Fatalf("keys %q", keys)
	}
	if ttl := client.PTTL(t.Context(), keys[0]).Val(); ttl <= 0 || ttl > 3*time.Second {
		t.Errorf("it expires in %v", ttl)
	}
}

// After the clock of Redis was set back, or a limit made smaller, requests are still admitted.
func TestStateFromTheFutureIsNoLockout(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	limit := ratelimit.Limit{Name: "n", PerSecond: 1000, Burst: 10}
	take(ratelimit.New(client, nil), limit)
	pass(t, client, -time.Hour)
	l := ratelimit.New(client, nil)
	waittest.Until(t, "a request is admitted", func() bool { return take(l, limit).OK })
}

func TestWithoutRedisEachProcessLimitsAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	c, now := frozen()
	l := ratelimit.New(server.Client(), now)
	if got := admitted(l, slow, 30); got != 30 {
		t.Fatalf("%d of 30", got)
	}
	server.Kill()
	if got := admitted(l, slow, 200); got != 70 {
		t.Fatalf("%d more without Redis, want the 70 that are left", got)
	}
	c.advance(5000 * time.Second)
	if got := admitted(l, slow, 20); got != 5 {
		t.Fatalf("%d after the time of 5 tokens", got)
	}
	server.Restart()
	got := 0
	for end := time.Now().Add(time.Minute); got < 100 && time.Now().Before(end); <-time.After(time.Millisecond) {
		c.advance(2 * time.Second) // Redis is asked whether it is back; it has forgotten everything
		got += admitted(l, slow, 200)
	}
	if got += admitted(l, slow, 200); got != 100 {
		t.Errorf("%d with a new Redis", got)
	}
}

func TestAHangingRedisHoldsUpOnlyTheFirst(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	l := ratelimit.New(server.Client(), nil)
	server.Pause()
	defer server.Resume()
	started := time.Now()
	if got := admitted(l, slow, 100); got != 100 {
		t.Errorf("%d admitted", got)
	}
	if took := time.Since(started); took > time.Minute {
		t.Errorf("100 requests took %v", took)
	}
}

// While one shard of a Cluster hangs, replicas share the buckets of the other shards.
func TestAHangingShardLeavesOtherBucketsShared(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 2, "--cluster-require-full-coverage", "no")
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr(), servers[1].Addr()}, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	_, now := frozen()
	own, other := ratelimit.New(client, now), ratelimit.New(client, now)
	onShard := func(server int) (key string) {
		for i := 0; ; i++ {
			key = strconv.Itoa(i)
			own.Take(t.Context(), slow, key, 1)
			if n, err := servers[server].Client().DBSize(t.Context()).Result(); err != nil {
				t.Fatal(err)
			} else if n > 0 {
				return key
			}
		}
	}
	hung, served := onShard(0), onShard(1)
	servers[0].Pause()
	defer servers[0].Resume()
	if d := own.Take(t.Context(), slow, hung, 99); !d.OK {
		t.Errorf("by a local bucket: %+v", d)
	}
	own.LeaseTimeout, other.LeaseTimeout = time.Minute, time.Minute // a busy machine is no shard that hangs
	if d := own.Take(t.Context(), slow, served, 90); !d.OK {
		t.Errorf("of another shard: %+v", d)
	}
	if d := other.Take(t.Context(), slow, served, 10); d.OK {
		t.Errorf("the other replica got 10 of at most 9 tokens: %+v", d)
	}
}

// countCalls counts the round trips of a client. Each waits until gate is closed, if there is one.
func countCalls(client redis.UniversalClient, gate <-chan struct{}) *atomic.Int64 {
	var calls atomic.Int64
	client.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" {
			calls.Add(1)
			if gate != nil {
				<-gate
			}
		}
		return next(ctx, cmd)
	}})
	return &calls
}

func TestConcurrentRequestsShareALease(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	gate := make(chan struct{})
	calls := countCalls(client, gate)
	l := ratelimit.New(client, nil)
	limit := ratelimit.Limit{Name: "n", PerSecond: 1000, Burst: 1000} // a chunk is 50
	var group sync.WaitGroup
	var count atomic.Int64
	for range 40 {
		group.Go(func() {
			if take(l, limit).OK {
				count.Add(1)
			}
		})
	}
	close(gate)
	group.Wait()
	if count.Load() != 40 || calls.Load() != 1 {
		t.Errorf("%d admitted by %d round trips", count.Load(), calls.Load())
	}
}

// A refused flood costs Redis a round trip for each chunk, not for each request.
func TestARefusedFloodDoesNotReachRedis(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	calls := countCalls(client, nil)
	_, now := frozen()
	l := ratelimit.New(client, now)
	admitted(l, slow, 10_000)
	if n := calls.Load(); n > 102 {
		t.Errorf("%d round trips for 100 tokens of a chunk of 1", n)
	}
}

func TestNoRateLimitsNothing(t *testing.T) {
	t.Parallel()
	l := ratelimit.New(nil, nil)
	if got := admitted(l, ratelimit.Limit{Name: "off"}, 1000); got != 1000 {
		t.Errorf("%d admitted", got)
	}
}

// For random requests, no window admits more than the burst plus its share of the rate. A
// request after RetryAfter is admitted.
func TestNoWindowAdmitsMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := ratelimit.Limit{
			Name:      "n",
			PerSecond: rapid.Float64Range(0.1, 5000).Draw(t, "rate"),
			Burst:     rapid.IntRange(1, 50).Draw(t, "burst"),
		}
		most := rapid.IntRange(1, 60).Draw(t, "most items")
		c, now := frozen()
		l := ratelimit.New(nil, now)
		var at []time.Time
		for range rapid.IntRange(1, 100).Draw(t, "requests") {
			c.advance(time.Duration(rapid.Int64Range(0, int64(2*float64(time.Second)/limit.PerSecond)).Draw(t, "pause")))
			n := rapid.IntRange(1, most).Draw(t, "items")
			d := l.Take(context.Background(), limit, "acme", n)
			if !d.OK && rapid.Bool().Draw(t, "patient") {
				c.advance(d.RetryAfter)
				if d = l.Take(context.Background(), limit, "acme", n); !d.OK {
					t.Fatalf("refused after RetryAfter: %+v", d)
				}
			}
			if d.OK {
				at = append(at, slices.Repeat([]time.Time{c.now()}, min(n, limit.Burst))...)
			}
		}
		for i := range at {
			for j := i; j < len(at); j++ {
				limit := float64(limit.Burst) + at[j].Sub(at[i]).Seconds()*limit.PerSecond + 1e-3
				if float64(j-i+1) > limit {
					t.Fatalf("%d in %v", j-i+1, at[j].Sub(at[i]))
				}
			}
		}
	})
}

// The same holds for the script, with simulated time.
// A call that is repeated after a lost answer takes its tokens once, and returns them once.
func TestARepeatedLeaseCountsOnce(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	client.AddHook(redistest.Repeats())
	limit := ratelimit.Limit{Name: "n", PerSecond: 0.001, Burst: 9}
	_, now := frozen()
	l, ctx := ratelimit.New(client, now), redistest.Repeated(t.Context())
	if got := l.Take(ctx, limit, "acme", 4); !got.OK || got.Remaining != 5 {
		t.Errorf("4 of 9 taken: %+v", got)
	}
	if got := l.Give(ctx, limit, "acme", 2); got.Remaining != 7 {
		t.Errorf("2 of 4 returned: %+v", got)
	}
}

func TestTheScriptAdmitsNoMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	limit := ratelimit.Limit{Name: "n", PerSecond: 0.001, Burst: 9}
	c, now := frozen()
	replicas := []*ratelimit.Limiter{ratelimit.New(client, now), ratelimit.New(client, now)}
	total, passed := 0, time.Duration(0)
	for i := range 60 {
		total += admitted(replicas[i%2], limit, 1+i%3)
		if i%4 == 3 {
			const step = 700 * time.Second
			passed += step
			c.advance(step)
			pass(t, client, step)
		}
		if most := limit.Burst + int(passed.Seconds()*limit.PerSecond); total > most {
			t.Fatalf("%d admitted after %v, at most %d", total, passed, most)
		}
	}
	if total < limit.Burst+5 {
		t.Errorf("only %d admitted", total)
	}
}

func BenchmarkTake(b *testing.B) {
	limit := ratelimit.Limit{Name: "bench", PerSecond: 1e9, Burst: 1 << 30}
	for _, keys := range []int{1, 1000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			l := ratelimit.New(redistest.New(b), nil)
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("client-%d", i)
			}
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for i := 0; p.Next(); i++ {
					if !l.Take(b.Context(), limit, names[i%keys], 1).OK {
						b.Fatal("refused")
					}
				}
			})
		})
	}
}

// A request whose context ended during the lease of another one takes nothing.
func TestACancelledRequestTakesNothing(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	gate := make(chan struct{})
	calls := countCalls(client, gate)
	l := ratelimit.New(client, nil)
	var group sync.WaitGroup
	group.Go(func() { take(l, slow) })
	for calls.Load() == 0 {
		<-time.After(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	group.Go(func() {
		if l.Take(ctx, slow, "acme", 1).OK {
			t.Error("admitted")
		}
		if !l.Take(ctx, slow, "acme", 0).OK {
			t.Error("no token was refused")
		}
	})
	close(gate)
	group.Wait()
	if calls.Load() != 1 {
		t.Errorf("%d leases", calls.Load())
	}
}
