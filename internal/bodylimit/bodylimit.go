// Package bodylimit bounds the memory of request bodies, from their first byte until their
// request is answered: per connection, per address, per company, and in total. Only received
// bytes count, not the announced length.
package bodylimit

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/peer"
)

// The bounds, in bytes. A company holds at most what is left free of the total. The last eighth
// of each bound is reserved for the first bytes of bodies: most bodies are small.
const (
	ofConnection = 16 << 20
	ofAddress    = 32 << 20
	ofProcess    = 128 << 20
	small        = 64 << 10
)

// wait is how long a body waits for memory of others. It is short, because bodies that wait
// keep their memory and could block each other.
const wait = time.Second

// ErrFull means that no memory for a body became free in time.
var ErrFull = errors.New("too many request bodies are being received")

// Limiter counts the bytes of all bodies. It is safe for concurrent use.
type Limiter struct {
	exempt  func(netip.Addr) bool
	refused prometheus.Counter

	mu    sync.Mutex
	total int64
	held  map[holder]int64
	freed chan struct{} // closed when bytes are freed, and then replaced
}

// holder is a connection, an address or a company.
type holder struct {
	connection *byte
	address    netip.Prefix
	company    string
}

// New returns a Limiter. Connections from exempt addresses (proxies) have no bound of their
// own; nil exempts none. It registers its metrics with reg, if not nil.
func New(exempt func(netip.Addr) bool, reg prometheus.Registerer) *Limiter {
	l := &Limiter{
		exempt: exempt, held: map[holder]int64{}, freed: make(chan struct{}),
		refused: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "spendhook_bodies_refused_total", Help: "Requests refused because the bodies in memory had reached a limit.",
		}),
	}
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_bodies_bytes", Help: "Memory of request bodies that are being received or handled, in bytes.",
	}, func() float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(l.total)
	})
	return l
}

type connectionKey struct{}

// ConnContext marks the requests of a connection, so that Open can bound them together. It is
// for http.Server.ConnContext.
func (l *Limiter) ConnContext(ctx context.Context, c net.Conn) context.Context {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	if ok && l.exempt != nil && l.exempt(remote.AddrPort().Addr().Unmap()) {
		return ctx
	}
	return context.WithValue(ctx, connectionKey{}, new(byte))
}

// Body is the memory of one body. It is for one goroutine.
type Body struct {
	limiter *Limiter
	holders [3]holder
	bytes   int64
}

// Open begins a body of a request: ctx is the request's, with its connection
// (ConnContext) and address (peer.Address). The company is "" where there is
// none. Close it.
func (l *Limiter) Open(ctx context.Context, company string) *Body {
	connection, _ := ctx.Value(connectionKey{}).(*byte)
	return &Body{limiter: l, holders: [3]holder{
		{connection: connection}, {address: peer.Network(peer.Address(ctx))}, {company: company},
	}}
}

// Grow reserves n more bytes, and waits at most a second for them. It returns ErrFull, or the
// error of ctx.
func (b *Body) Grow(ctx context.Context, n int) error {
	freed := b.take(int64(n))
	if freed == nil {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for freed != nil {
		select {
		case <-freed:
			freed = b.take(int64(n))
		case <-timer.C:
			b.limiter.refused.Inc()
			return ErrFull
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// take reserves n bytes and returns nil. If they are not free, it returns a channel that is closed
// when bytes are freed.
func (b *Body) take(n int64) <-chan struct{} {
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	left := ofProcess - l.total - n
	if left < 0 || !b.fits(l.total+n, ofProcess, n) {
		return l.freed
	}
	for i, bound := range [...]int64{ofConnection, ofAddress, left} {
		if h := b.holders[i]; h != (holder{}) && !b.fits(l.held[h]+n, bound, n) {
			return l.freed
		}
	}
	b.add(n)
	return nil
}

// fits reports whether a body may grow by n bytes when a bound would then have bytes in use.
// Large bodies cannot use the last eighth of a bound.
func (b *Body) fits(bytes, bound, n int64) bool {
	if b.bytes+n > small {
		bound -= bound / 8
	}
	return bytes <= bound
}

func (b *Body) add(n int64) {
	l := b.limiter
	b.bytes += n
	l.total += n
	for _, h := range b.holders {
		if h == (holder{}) {
			continue
		}
		if l.held[h] += n; l.held[h] == 0 {
			delete(l.held, h)
		}
	}
}

// Close frees the memory of the body.
func (b *Body) Close() {
	if b.bytes == 0 {
		return
	}
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	b.add(-b.bytes)
	close(l.freed)
	l.freed = make(chan struct{})
}
