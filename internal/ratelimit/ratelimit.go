// Package ratelimit limits rates by token buckets that all replicas share
// through Redis.
//
// Each process leases tokens in chunks, of 50 ms of the rate and of at most a
// tenth of the burst, and hands them out from memory: at a thousand requests a
// second one in fifty waits for Redis. What one process has leased no other
// has, so over any time N processes together admit no more than the limit and N
// chunks. While Redis is away each process goes on with a bucket of its own.
package ratelimit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"
)

const (
	maxBuckets   = 20_000 // in memory, of ~200 bytes each; the least used are forgotten
	chunkTime    = 50 * time.Millisecond
	leaseTimeout = 250 * time.Millisecond
	awayTime     = time.Second // until Redis is asked again
)

// Limit is one token bucket for each key: PerSecond tokens come, up to Burst.
// A PerSecond of 0 limits nothing. Name tells limits apart; it is part of a
// Redis key and is not hashed.
type Limit struct {
	Name      string
	PerSecond float64
	Burst     int // at least 1
}

// cost is the time in which one token comes.
func (l Limit) cost() time.Duration { return time.Duration(float64(time.Second) / l.PerSecond) }

// chunk is how many tokens a process leases at a time.
func (l Limit) chunk() int {
	return max(1, min(l.Burst/10, int(l.PerSecond*chunkTime.Seconds())))
}

// Decision is what became of one request. Remaining and Reset, the time until
// the bucket is full, are as of the process's last lease and what it used since.
type Decision struct {
	OK               bool
	Limit, Remaining int           // tokens of a full bucket, and now
	Reset            time.Duration // until the bucket is full
	RetryAfter       time.Duration // until it is worth trying again; 0 when OK
}

// Limiter is safe for concurrent use and starts no goroutine.
type Limiter struct {
	client  redis.UniversalClient
	now     func() time.Time
	buckets *lru.Cache[bucketKey, *bucket]
	away    atomic.Int64 // unix nanoseconds until which Redis is not asked
}

type bucketKey struct{ limit, key string }

// bucket is what this process knows of one.
type bucket struct {
	mu      sync.Mutex
	held    int           // leased and not used yet
	full    time.Time     // when the bucket is full again
	retry   time.Time     // until then Redis has nothing to lease
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
	return &Limiter{client: client, now: now, buckets: buckets}
}

// Take takes a token for key, or says when to try again. It waits for Redis at
// most 250 ms, and only when the process has no token left of its lease.
func (l *Limiter) Take(ctx context.Context, limit Limit, key string) Decision {
	if limit.PerSecond <= 0 {
		return Decision{OK: true}
	}
	b := l.bucket(limit, key)
	for {
		decision, wait := l.try(ctx, b, limit, key)
		if wait == nil {
			return decision
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return b.withoutLease(limit, l.now())
		}
	}
}

// Peek says what Take would, as far as this process knows, and takes nothing.
func (l *Limiter) Peek(limit Limit, key string) Decision {
	b, known := l.buckets.Peek(bucketKey{limit.Name, key})
	if limit.PerSecond <= 0 || !known {
		return Decision{OK: true, Limit: limit.Burst, Remaining: limit.Burst}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := l.now()
	if b.held == 0 && now.Before(b.retry) {
		return b.refused(limit, now, b.retry.Sub(now))
	}
	if missing := b.missing(limit, now); b.held == 0 && missing > 0 {
		return b.refused(limit, now, missing)
	}
	return b.admitted(limit, now)
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

// try decides at once, or by a lease of its own, or returns what to wait for:
// another's lease.
func (l *Limiter) try(ctx context.Context, b *bucket, limit Limit, key string) (Decision, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := l.now()
	switch {
	case b.held > 0:
		b.held--
		return b.admitted(limit, now), nil
	case now.Before(b.retry):
		return b.refused(limit, now, b.retry.Sub(now)), nil
	case l.client == nil || now.UnixNano() < l.away.Load():
		return b.takeOwn(limit, now), nil
	case b.leasing != nil:
		return Decision{}, b.leasing
	}
	return l.lease(ctx, b, limit, key), nil
}

// lease asks Redis for the next chunk, with b unlocked meanwhile, and takes the
// first token of it. The requests that wait for the lease are others': it does
// not end with this one.
func (l *Limiter) lease(ctx context.Context, b *bucket, limit Limit, key string) Decision {
	done := make(chan struct{})
	b.leasing = done
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTimeout)
	answer, err := runLease(ctx, l.client, limit, key)
	cancel()
	b.mu.Lock()
	b.leasing = nil
	close(done)
	now := l.now()
	if err != nil {
		l.away.Store(now.Add(awayTime).UnixNano())
		return b.takeOwn(limit, now)
	}
	b.full = now.Add(answer.full)
	if answer.leased == 0 {
		b.retry = now.Add(answer.missing)
		return b.refused(limit, now, answer.missing)
	}
	b.held = answer.leased - 1
	return b.admitted(limit, now)
}

// withoutLease decides for one who cannot wait for the lease.
func (b *bucket) withoutLease(limit Limit, now time.Time) Decision {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.takeOwn(limit, now)
}

// takeOwn goes on from what is known of the bucket, without Redis.
func (b *bucket) takeOwn(limit Limit, now time.Time) Decision {
	if missing := b.missing(limit, now); missing > 0 {
		return b.refused(limit, now, missing)
	}
	if b.full.Before(now) {
		b.full = now
	}
	b.full = b.full.Add(limit.cost())
	return b.admitted(limit, now)
}

// missing is the time until there is a token in the bucket.
func (b *bucket) missing(limit Limit, now time.Time) time.Duration {
	return max(0, b.untilFull(now)-time.Duration(limit.Burst-1)*limit.cost())
}

func (b *bucket) untilFull(now time.Time) time.Duration { return max(0, b.full.Sub(now)) }

func (b *bucket) admitted(limit Limit, now time.Time) Decision {
	until := b.untilFull(now)
	left := b.held + limit.Burst - int((until+limit.cost()-1)/limit.cost())
	return Decision{OK: true, Limit: limit.Burst, Remaining: min(max(0, left), limit.Burst), Reset: until}
}

func (b *bucket) refused(limit Limit, now time.Time, retry time.Duration) Decision {
	return Decision{Limit: limit.Burst, Reset: b.untilFull(now), RetryAfter: retry}
}
