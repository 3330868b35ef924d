// Package requestmemory bounds the memory of requests: of their bodies and of their answers.
package requestmemory

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrFull means that the bytes did not become free in time.
var ErrFull = errors.New("the memory for requests is used up")

// Limiter counts the bytes that requests hold. Large claims cannot use the last eighth of a bound, since
// most requests are small. It is safe for concurrent use.
type Limiter struct {
	total, small int64

	mu      sync.Mutex
	used    int64
	held    map[any]int64 // by holder
	waiting []*Claim      // in the order of their requests
}

// New returns a Limiter of total bytes. A claim above small bytes is large.
func New(total, small int64) *Limiter {
	return &Limiter{total: total, small: small, held: map[any]int64{}}
}

// inUse is how many bytes are held.
func (l *Limiter) inUse() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}

// Bound limits the bytes that a holder has in all its claims together. When Bytes is 0, the holder may
// have as many bytes as are then left free; a holder without bytes may take all that are free.
type Bound struct {
	Holder any
	Bytes  int64
}

// Claim is the bytes that one request holds. It is for one goroutine. A nil Claim holds nothing.
type Claim struct {
	limiter *Limiter
	bounds  []Bound
	bytes   int64
	wanted  int64
	granted chan struct{} // closed when the claim has the wanted bytes
}

// Open begins a claim of no bytes.
func (l *Limiter) Open(bounds ...Bound) *Claim { return &Claim{limiter: l, bounds: bounds} }

// Grow adds n bytes, and waits for them no longer than patience. Large claims get bytes in turn. The
// error is ErrFull, or that of ctx.
func (c *Claim) Grow(ctx context.Context, n int64, patience time.Duration) error {
	l := c.limiter
	l.mu.Lock()
	c.wanted = n
	if ok, _ := c.fits(); ok && (len(l.waiting) == 0 || !c.large()) {
		c.add(n)
		l.mu.Unlock()
		return nil
	}
	c.granted = make(chan struct{})
	l.waiting = append(l.waiting, c)
	l.grant()
	l.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.granted:
		return nil
	case <-timer.C:
		return c.withdraw(ErrFull)
	case <-ctx.Done():
		return c.withdraw(ctx.Err())
	}
}

// withdraw stops waiting. It returns nil when the bytes were granted just now.
func (c *Claim) withdraw(err error) error {
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, c)
	if i < 0 {
		return nil
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.grant()
	return err
}

// ShrinkTo frees the bytes of the claim beyond a number.
func (c *Claim) ShrinkTo(bytes int64) {
	if c == nil || c.bytes <= bytes {
		return
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	c.add(bytes - c.bytes)
	c.limiter.grant()
}

// grant gives free bytes to the waiting claims. When the total is too small for a large claim, the large
// claims after it wait too; otherwise they could take the bytes again and again.
func (l *Limiter) grant() {
	full := false
	l.waiting = slices.DeleteFunc(l.waiting, func(c *Claim) bool {
		ok, total := c.fits()
		if !ok || full && c.large() {
			full = full || total
			return false
		}
		c.add(c.wanted)
		close(c.granted)
		return true
	})
}

func (c *Claim) large() bool { return c.bytes+c.wanted > c.limiter.small }

// fits reports whether the claim can have the wanted bytes and, when it cannot, whether the total is
// the reason.
func (c *Claim) fits() (ok, total bool) {
	l := c.limiter
	if l.used+c.wanted > c.part(l.total) {
		return false, true
	}
	for _, b := range c.bounds {
		held, most := l.held[b.Holder], b.Bytes
		if most == 0 {
			most = l.total - l.used - c.wanted
		}
		if held+c.wanted > c.part(most) && (held > 0 || b.Bytes > 0) {
			return false, false
		}
	}
	return true, false
}

// part is the part of a bound that the claim can use.
func (c *Claim) part(bound int64) int64 {
	if c.large() {
		return bound - bound/8
	}
	return bound
}

func (c *Claim) add(n int64) {
	l := c.limiter
	c.bytes += n
	l.used += n
	for _, b := range c.bounds {
		if l.held[b.Holder] += n; l.held[b.Holder] == 0 {
			delete(l.held, b.Holder)
		}
	}
}
