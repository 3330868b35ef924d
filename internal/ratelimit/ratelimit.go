// Package ratelimit limits rates by token buckets that all replicas share
// through Redis.
//
// Each process leases tokens in chunks and spends them from memory. A chunk has the tokens of
// 50 ms of the rate, at most a tenth of the burst: at a thousand requests a second one in fifty
// waits for Redis. A leased token belongs to one process, so over any time N processes together
// admit at most the limit plus N chunks. A request for more than a chunk leases exactly its own
// tokens. While the Redis server of a bucket is unreachable, each process uses a local bucket.
package ratelimit

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/base64"
	"maps"
	"math"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"

	"spendhook/internal/clock"
	"spendhook/internal/partition"
)

const (
	maxBuckets = 20_000 // in memory, of ~200 bytes each; the least used are forgotten
	chunkTime  = 50 * time.Millisecond
	probeEvery = time.Second // pause between probes of an unreachable shard
	forgetTime = time.Minute // after so long without a request, the next request waits for Redis again
)

// Limit is one token bucket for each key. The bucket gains PerSecond tokens a second, up to Burst.
// A PerSecond of 0 limits nothing. Name tells limits apart; it is part of a
// Redis key and is not hashed.
type Limit struct {
	Name      string
	PerSecond float64
	Burst     int // at least 1
}

// Hourly returns a limit of n in any hour, of which burst, 1 to n-1, can come at once.
func Hourly(name string, n, burst int) Limit {
	return Limit{Name: name, PerSecond: float64(n-burst) / 3600, Burst: burst}
}

// costOf is the time in which a bucket gains n tokens.
func (l Limit) costOf(n int) time.Duration {
	return time.Duration(float64(n) * float64(time.Second) / l.PerSecond)
}

// chunk is how many tokens a process leases at a time.
func (l Limit) chunk() int {
	return max(1, min(l.Burst/10, int(l.PerSecond*chunkTime.Seconds())))
}

// Decision is the answer to one request. Remaining and Reset are estimates from the process's
// last lease and the tokens it has used since.
type Decision struct {
	OK         bool
	Remaining  int           // tokens in the bucket
	Reset      time.Duration // until the bucket is full
	RetryAfter time.Duration // how long to wait before a repetition; 0 when OK
}

// Limiter is safe for concurrent use. It probes a Redis server that is unreachable in the
// background, for at most 250 ms at a time.
type Limiter struct {
	// LeaseTimeout is how long a lease may take. After it the process decides by its local
	// bucket. New sets 250 ms; it must not be changed while the Limiter is used.
	LeaseTimeout time.Duration

	client  redis.UniversalClient
	now     func() time.Time
	buckets *lru.Cache[bucketKey, *bucket]

	mu          sync.Mutex
	unreachable map[string]time.Time // the next probe of each shard that is unreachable, named as by partition.ShardOf
}

type bucketKey struct{ limit, key string }

// bucket is the state of one bucket in this process. It is locked during a lease: the requests that
// come meanwhile use the leased tokens.
type bucket struct {
	sync.Mutex
	held         int       // leased and not used yet
	full         time.Time // when the bucket is full again
	refusedUntil time.Time // Redis has no refusedNeed tokens before this time
	refusedNeed  int
}

// New returns a Limiter that shares its buckets through client; with a nil
// client they are this process's own. Nil now means time.Now.
func New(client redis.UniversalClient, now func() time.Time) *Limiter {
	buckets, err := lru.New[bucketKey, *bucket](maxBuckets)
	if err != nil {
		panic(err) // only for a size of 0
	}
	return &Limiter{LeaseTimeout: 250 * time.Millisecond, client: client, now: clock.Or(now), buckets: buckets, unreachable: make(map[string]time.Time)}
}

// Take takes n tokens for key, all or none, or says when to try again. If n is more than Burst,
// it takes the whole bucket when the bucket is full. It waits for Redis only when the lease of this
// process has fewer than n tokens: at most 250 ms, after those that wait for the same bucket. If ctx
// has ended by then, it takes none. The end of ctx does not end a lease, because other requests wait
// for it too.
func (l *Limiter) Take(ctx context.Context, limit Limit, key string, n int) Decision {
	if limit.PerSecond <= 0 {
		return Decision{OK: true}
	}
	n = min(n, limit.Burst)
	b := l.bucket(limit, key)
	b.Lock()
	defer b.Unlock()
	now, need := l.now(), n-b.held
	switch {
	case n > 0 && ctx.Err() != nil:
		return b.refused(limit, now, n, l.LeaseTimeout)
	case need <= 0:
		b.held -= n
		return b.admitted(limit, now)
	case now.Before(b.refusedUntil) && need >= b.refusedNeed:
		return b.refused(limit, now, n, max(b.refusedUntil.Sub(now), b.missing(limit, now, need)))
	case l.isUnreachable(ctx, limit, key, now):
		return b.takeLocally(limit, now, n)
	}
	answer, ok := l.lease(ctx, limit, key, need)
	now = l.now()
	if !ok {
		return b.takeLocally(limit, now, n)
	}
	b.full = now.Add(answer.full)
	if answer.leased == 0 {
		b.refusedUntil, b.refusedNeed = now.Add(answer.missing), need
		return b.refused(limit, now, n, answer.missing)
	}
	b.held += answer.leased - n
	return b.admitted(limit, now)
}

// Give returns n tokens that Take took for a request that was not executed after all. They are lost
// when Redis does not answer within 250 ms.
func (l *Limiter) Give(ctx context.Context, limit Limit, key string, n int) Decision {
	n = min(n, limit.Burst)
	b := l.bucket(limit, key)
	b.Lock()
	defer b.Unlock()
	b.refusedUntil = time.Time{}
	switch now := l.now(); {
	case b.held+n <= limit.chunk():
		b.held += n
	case l.isUnreachable(ctx, limit, key, now):
		b.full = b.full.Add(-limit.costOf(n))
	default:
		if answer, ok := l.lease(ctx, limit, key, -n); ok {
			b.full = now.Add(answer.full)
		}
	}
	return b.admitted(limit, l.now())
}

func (l *Limiter) bucket(limit Limit, key string) *bucket {
	name := bucketKey{limit.Name, key}
	if b, ok := l.buckets.Get(name); ok {
		return b
	}
	b := &bucket{}
	if previous, ok, _ := l.buckets.PeekOrAdd(name, b); ok {
		return previous
	}
	return b
}

// isUnreachable reports whether the shard of a bucket counts as unreachable, so that the local bucket is
// used. Once per probeEvery it checks in the background whether the shard is reachable again.
func (l *Limiter) isUnreachable(ctx context.Context, limit Limit, key string, now time.Time) bool {
	if l.client == nil {
		return true
	}
	name := redisKey(limit.Name, key)
	shard, _ := partition.ShardOf(ctx, l.client, name) // without a name the lease fails
	l.mu.Lock()
	defer l.mu.Unlock()
	next, known := l.unreachable[shard]
	if !known || now.After(next.Add(forgetTime)) {
		return false
	}
	if !now.Before(next) {
		l.unreachable[shard] = now.Add(probeEvery)
		go l.probe(context.WithoutCancel(ctx), shard, name)
	}
	return true
}

func (l *Limiter) probe(ctx context.Context, shard, name string) {
	ctx, cancel := context.WithTimeout(ctx, l.LeaseTimeout)
	defer cancel()
	if l.client.Exists(ctx, name).Err() == nil {
		l.mu.Lock()
		delete(l.unreachable, shard)
		l.mu.Unlock()
	}
}

// setUnreachable marks a shard as unreachable.
func (l *Limiter) setUnreachable(shard string) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.unreachable, func(_ string, next time.Time) bool { return now.After(next.Add(forgetTime)) })
	l.unreachable[shard] = now.Add(probeEvery)
}

// takeLocally takes n tokens from the local state of the bucket, without Redis.
func (b *bucket) takeLocally(limit Limit, now time.Time, n int) Decision {
	need := max(0, n-b.held)
	if missing := b.missing(limit, now, need); missing > 0 {
		return b.refused(limit, now, n, missing)
	}
	b.held -= n - need
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(limit.costOf(need))
	return b.admitted(limit, now)
}

// missing is the time until the bucket has n tokens.
func (b *bucket) missing(limit Limit, now time.Time, n int) time.Duration {
	return max(0, b.untilFull(now)-limit.costOf(limit.Burst-n))
}

func (b *bucket) untilFull(now time.Time) time.Duration { return max(0, b.full.Sub(now)) }

func (b *bucket) admitted(limit Limit, now time.Time) Decision {
	return Decision{OK: true, Remaining: b.left(limit, now), Reset: b.untilFull(now)}
}

// refused is the decision when fewer than n tokens are left.
func (b *bucket) refused(limit Limit, now time.Time, n int, retry time.Duration) Decision {
	return Decision{Remaining: min(b.left(limit, now), n-1), Reset: b.untilFull(now), RetryAfter: retry}
}

func (b *bucket) left(limit Limit, now time.Time) int {
	used := math.Ceil(b.untilFull(now).Seconds()*limit.PerSecond - 0.01) // tolerance for rounding
	return min(max(0, b.held+limit.Burst-int(used)), limit.Burst)
}

//go:embed lua/lease.lua
var leaseSource string

var leaseScript = redis.NewScript(leaseSource)

type leaseAnswer struct {
	leased        int
	full, missing time.Duration // until the bucket is full; until it has all tokens that were wanted
}

// lease leases at least need tokens, a chunk if need is less. A negative need returns -need tokens.
// It fails after LeaseTimeout. A failure marks the shard of the bucket as unreachable.
func (l *Limiter) lease(ctx context.Context, limit Limit, key string, need int) (answer leaseAnswer, ok bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.LeaseTimeout)
	defer cancel()
	name := redisKey(limit.Name, key)
	numbers, err := leaseScript.Run(ctx, l.client, []string{name},
		1e6/limit.PerSecond, limit.Burst, need, max(need, limit.chunk()), rand.Text()).Int64Slice()
	if err != nil || len(numbers) != 3 {
		shard, _ := partition.ShardOf(ctx, l.client, name)
		l.setUnreachable(shard)
		return leaseAnswer{}, false
	}
	return leaseAnswer{
		leased:  int(numbers[0]),
		full:    time.Duration(numbers[1]) * time.Microsecond,
		missing: time.Duration(numbers[2]) * time.Microsecond,
	}, true
}

// redisKey contains a hash of key, because a caller may choose any key of any length.
func redisKey(name, key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sh:limit:" + name + ":" + base64.RawURLEncoding.EncodeToString(sum[:16])
}
