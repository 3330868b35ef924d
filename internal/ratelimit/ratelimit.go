// Package ratelimit limits rates by token buckets that all replicas share
// through Redis.
//
// Each process leases tokens in chunks and spends them from memory. A chunk has the tokens of
// 50 ms of the rate, at most a tenth of the burst: at a thousand requests a second one in fifty
// waits for Redis. A leased token belongs to one process, so over any time N processes together
// admit at most the limit plus N chunks. A request for more than a chunk leases exactly its own
// tokens. While Redis is unreachable each process uses a local bucket.
package ratelimit

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"
)

const (
	maxBuckets = 20_000 // in memory, of ~200 bytes each; the least used are forgotten
	chunkTime  = 50 * time.Millisecond
	awayTime   = time.Second // pause between probes of an unreachable Redis
	forgetTime = time.Minute // without a request, after which the next one waits for Redis again
)

// Limit is one token bucket for each key: PerSecond tokens come, up to Burst.
// A PerSecond of 0 limits nothing. Name tells limits apart; it is part of a
// Redis key and is not hashed.
type Limit struct {
	Name      string
	PerSecond float64
	Burst     int // at least 1
}

// costOf is the time in which n tokens come.
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

// Limiter is safe for concurrent use. While Redis is unreachable it probes Redis in the
// background, for at most 250 ms at a time.
type Limiter struct {
	// LeaseTimeout is how long a lease may take. After it the process decides by a bucket
	// of its own. New sets 250 ms; it must not be changed while the Limiter is used.
	LeaseTimeout time.Duration

	client  redis.UniversalClient
	now     func() time.Time
	buckets *lru.Cache[bucketKey, *bucket]
	away    atomic.Int64 // 0: Redis is reachable; else the unix nanoseconds of the next probe
}

type bucketKey struct{ limit, key string }

// bucket is the state of one bucket in this process.
type bucket struct {
	mu      sync.Mutex
	held    int       // leased and not used yet
	full    time.Time // when the bucket is full again
	retry   time.Time // until then Redis cannot lease as many tokens as retried
	retried int
	leasing chan struct{} // closed when the lease under way has ended; nil without one
}

// New returns a Limiter that shares its buckets through client; with a nil
// client they are this process's own. Nil now means time.Now.
func New(client redis.UniversalClient, now func() time.Time) *Limiter {
	if now == nil {
		now = time.Now //nolint:forbidigo // the nil default
	}
	buckets, err := lru.New[bucketKey, *bucket](maxBuckets)
	if err != nil {
		panic(err) // only for a size of 0
	}
	return &Limiter{LeaseTimeout: 250 * time.Millisecond, client: client, now: now, buckets: buckets}
}

// Take takes n tokens for key, all or none, or says when to try again. If n is more than Burst,
// it takes the whole bucket when the bucket is full. It waits for Redis at most 250 ms, and
// only when the lease of this process has fewer than n tokens.
func (l *Limiter) Take(ctx context.Context, limit Limit, key string, n int) Decision {
	if limit.PerSecond <= 0 {
		return Decision{OK: true}
	}
	n = min(n, limit.Burst)
	b := l.bucket(limit, key)
	for {
		decision, wait := l.try(ctx, b, limit, key, n)
		if wait == nil {
			return decision
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return b.withoutLease(limit, l.now(), n)
		}
	}
}

// Give returns n tokens of a request that was not executed after all. They are lost when Redis
// does not answer within 250 ms.
func (l *Limiter) Give(ctx context.Context, limit Limit, key string, n int) Decision {
	if limit.PerSecond <= 0 {
		return Decision{OK: true}
	}
	n = min(n, limit.Burst)
	b := l.bucket(limit, key)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.retry = time.Time{}
	switch now := l.now(); {
	case b.held+n <= limit.chunk():
		b.held += n
	case l.isAway(now):
		b.full = b.full.Add(-limit.costOf(n))
	default:
		b.mu.Unlock()
		answer, err := l.runLease(ctx, limit, key, -n)
		b.mu.Lock()
		if err == nil {
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

// try decides at once or after a lease. While another request is leasing, it returns a channel
// that is closed at the end of that lease.
func (l *Limiter) try(ctx context.Context, b *bucket, limit Limit, key string, n int) (Decision, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := l.now()
	switch {
	case b.held >= n:
		b.held -= n
		return b.admitted(limit, now), nil
	case now.Before(b.retry) && n-b.held >= b.retried:
		return b.refused(limit, now, n, max(b.retry.Sub(now), b.missing(limit, now, n-b.held))), nil
	case l.isAway(now):
		l.askAgain(ctx, limit, key, now)
		return b.takeOwn(limit, now, n), nil
	case b.leasing != nil:
		return Decision{}, b.leasing
	}
	return l.lease(ctx, b, limit, key, n), nil
}

// isAway reports whether Redis counts as unreachable, so that local buckets are used.
func (l *Limiter) isAway(now time.Time) bool {
	away := l.away.Load()
	return l.client == nil || away != 0 && now.UnixNano() < away+int64(forgetTime)
}

// askAgain probes in the background whether Redis is reachable again, once per awayTime.
func (l *Limiter) askAgain(ctx context.Context, limit Limit, key string, now time.Time) {
	at := l.away.Load()
	if l.client == nil || now.UnixNano() < at || !l.away.CompareAndSwap(at, now.Add(awayTime).UnixNano()) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.LeaseTimeout)
	go func() {
		defer cancel()
		if l.client.Exists(ctx, redisKey(limit.Name, key)).Err() == nil {
			l.away.Store(0)
		}
	}()
}

// lease leases the next chunk, or the tokens that n needs beyond those held, and takes n. b is
// unlocked meanwhile. Other requests wait for the lease too, so that it does not end with this
// request's context.
func (l *Limiter) lease(ctx context.Context, b *bucket, limit Limit, key string, n int) Decision {
	done := make(chan struct{})
	held := b.held
	b.leasing, b.held = done, 0
	b.mu.Unlock()
	answer, err := l.runLease(ctx, limit, key, n-held)
	b.mu.Lock()
	b.leasing = nil
	b.held += held
	close(done)
	now := l.now()
	if err != nil {
		return b.takeOwn(limit, now, n)
	}
	b.full = now.Add(answer.full)
	if answer.leased == 0 {
		b.retry, b.retried = now.Add(answer.missing), n-held
		return b.refused(limit, now, n, answer.missing)
	}
	b.held += answer.leased - n
	return b.admitted(limit, now)
}

// runLease calls the function runLease with a timeout. A failure marks Redis as unreachable.
func (l *Limiter) runLease(ctx context.Context, limit Limit, key string, need int) (leaseAnswer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.LeaseTimeout)
	defer cancel()
	answer, err := runLease(ctx, l.client, limit, key, need)
	if err != nil {
		l.away.Store(l.now().Add(awayTime).UnixNano())
	}
	return answer, err
}

// withoutLease decides without waiting for a lease.
func (b *bucket) withoutLease(limit Limit, now time.Time, n int) Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeOwn(limit, now, n)
}

// takeOwn takes n tokens from the local state of the bucket, without Redis.
func (b *bucket) takeOwn(limit Limit, now time.Time, n int) Decision {
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

// missing is the time until there are n tokens in the bucket.
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
