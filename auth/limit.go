package auth

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// How many wrong secrets are hashed: at once, and then one in each interval.
// What is right costs nothing of it.
const (
	addressFailures, addressEvery    = 10, 5 * time.Second
	clientFailures, clientEvery      = 20, 5 * time.Second
	allFailures, allEvery            = 50, 200 * time.Millisecond
	limitedAddresses, limitedClients = 20_000, 20_000
)

// bucket is a token bucket. The zero value is full.
type bucket struct {
	taken float64
	at    time.Time
}

// leak is how much is taken of the bucket now.
func (b *bucket) leak(now time.Time, every time.Duration) {
	passed := max(0, now.Sub(b.at)) // a clock that was set back starts anew
	b.taken = max(0, b.taken-float64(passed)/float64(every))
	b.at = now
}

// failureLimit bounds the failed attempts by address, by client and in all. It
// is of this process alone: what it protects is this process's CPU. It is safe
// for concurrent use, and forgets the addresses and clients that have been
// quiet for longest.
type failureLimit struct {
	mu        sync.Mutex
	addresses *lru.Cache[netip.Prefix, *bucket]
	clients   *lru.Cache[string, *bucket]
	all       bucket
}

func newFailureLimit() *failureLimit {
	addresses, err := lru.New[netip.Prefix, *bucket](limitedAddresses)
	clients, err2 := lru.New[string, *bucket](limitedClients)
	if err := errors.Join(err, err2); err != nil {
		panic(err) // only a cache of no size
	}
	return &failureLimit{addresses: addresses, clients: clients}
}

// take counts an attempt as failed before it is made, so that many at once are
// no more than the limit. When there is no room it returns how long until there
// is. Call giveBack for an attempt that succeeds.
func (l *failureLimit) take(address netip.Addr, client string, now time.Time) (giveBack func(), wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limits := []struct {
		*bucket
		burst float64
		every time.Duration
	}{
		{bucketOf(l.addresses, network(address)), addressFailures, addressEvery},
		{bucketOf(l.clients, client), clientFailures, clientEvery},
		{&l.all, allFailures, allEvery},
	}
	for _, b := range limits {
		b.leak(now, b.every)
		if over := b.taken + 1 - b.burst; over > 0 {
			wait = max(wait, time.Duration(over*float64(b.every)))
		}
	}
	if wait > 0 {
		return nil, wait
	}
	for _, b := range limits {
		b.taken++
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, b := range limits {
			b.taken = max(0, b.taken-1)
		}
	}, 0
}

func bucketOf[K comparable](cache *lru.Cache[K, *bucket], key K) *bucket {
	if b, ok := cache.Get(key); ok {
		return b
	}
	b := &bucket{}
	cache.Add(key, b)
	return b
}

// network is what one client can easily have all addresses of: an IPv6 /64.
func network(address netip.Addr) netip.Prefix {
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, _ := address.Prefix(bits) // the zero Prefix for an unknown address
	return prefix
}

// gate lets a few at a time do what is expensive, and a few more wait.
type gate struct {
	slots, queue chan struct{}
	wait         time.Duration
}

var errBusy = errors.New("too many wait already")

func newGate(atOnce, waiting int, wait time.Duration) *gate {
	return &gate{slots: make(chan struct{}, atOnce), queue: make(chan struct{}, atOnce+waiting), wait: wait}
}

// enter returns once there is a slot, and how to leave it; errBusy when the
// queue is full or did not move in time.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	select {
	case g.queue <- struct{}{}:
	default:
		return nil, errBusy
	}
	timer := time.NewTimer(g.wait)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots; <-g.queue }, nil
	case <-timer.C:
		err = errBusy
	case <-ctx.Done():
		err = ctx.Err()
	}
	<-g.queue
	return nil, err
}
