package requestmemory

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/peer"
)

// The bounds of bodies, in bytes. A company holds at most what is left free of the total.
const (
	ofConnection = 16 << 20
	ofAddress    = 32 << 20
	ofProcess    = 128 << 20
	smallBody    = 64 << 10
)

// bodyWait is how long a body waits for memory that other bodies hold. It is short, because bodies that wait
// keep their memory and could block each other.
const bodyWait = time.Second

// Bodies bounds the memory of request bodies, from their first byte until their request is answered:
// per connection, per address, per company, and in total. Only received bytes count, not the announced
// length. It is safe for concurrent use.
type Bodies struct {
	limiter *Limiter
	exempt  func(netip.Addr) bool
	refused prometheus.Counter
}

// NewBodies returns Bodies. Connections from exempt addresses (proxies) have no bound of their
// own; nil exempts none. It registers its metrics with reg, if not nil.
func NewBodies(exempt func(netip.Addr) bool, reg prometheus.Registerer) *Bodies {
	b := &Bodies{
		limiter: New(ofProcess, smallBody), exempt: exempt,
		refused: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "spendhook_bodies_refused_total", Help: "Requests refused because the bodies in memory had reached a limit.",
		}),
	}
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spendhook_bodies_bytes", Help: "Memory of request bodies that are being received or handled, in bytes.",
	}, func() float64 { return float64(b.limiter.inUse()) })
	return b
}

type connectionKey struct{}

// ConnContext marks the requests of a connection, so that Open can bound them together. It is
// for http.Server.ConnContext.
func (b *Bodies) ConnContext(ctx context.Context, c net.Conn) context.Context {
	remote, ok := c.RemoteAddr().(*net.TCPAddr)
	if ok && b.exempt != nil && b.exempt(remote.AddrPort().Addr().Unmap()) {
		return ctx
	}
	return context.WithValue(ctx, connectionKey{}, new(byte))
}

// Open begins the claim of a body: ctx is the request's, with its connection (ConnContext) and address
// (peer.Address). The company is "" where there is none.
func (b *Bodies) Open(ctx context.Context, company string) *Claim {
	bounds := make([]Bound, 0, 3)
	if connection, ok := ctx.Value(connectionKey{}).(*byte); ok {
		bounds = append(bounds, Bound{connection, ofConnection})
	}
	if network := peer.Network(peer.Address(ctx)); network.IsValid() {
		bounds = append(bounds, Bound{network, ofAddress})
	}
	if company != "" {
		bounds = append(bounds, Bound{Holder: company})
	}
	return b.limiter.Open(bounds...)
}

// Grow adds n bytes to the claim of a body, and waits at most a second for them. The error is ErrFull,
// or that of ctx.
func (b *Bodies) Grow(ctx context.Context, c *Claim, n int) error {
	err := c.Grow(ctx, int64(n), bodyWait)
	if err == ErrFull { //nolint:errorlint // Grow returns this very value
		b.refused.Inc()
	}
	return err
}
