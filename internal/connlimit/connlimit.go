// Package connlimit bounds the open connections of a listener, in all and from
// one address.
package connlimit

import (
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spendhook/internal/peer"
)

// Options are the bounds of one listener.
type Options struct {
	Max           int // connections in all
	MaxPerAddress int // from one IPv4 address or one IPv6 /64
	// Exempt reports whether an address has no bound; nil exempts none.
	Exempt  func(netip.Addr) bool
	Metrics *Metrics
	Name    string // of the listener, in the metrics
}

// Metrics count the connections of all listeners.
type Metrics struct {
	open    *prometheus.GaugeVec
	refused *prometheus.CounterVec
}

// NewMetrics registers the metrics with reg, if not nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	return &Metrics{
		open: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
			Name: "spendhook_connections_open",
			Help: "Open connections, by listener.",
		}, []string{"listener"}),
		refused: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spendhook_connections_refused_total",
			Help: "Connections closed at once because the listener or the address had reached its limit.",
		}, []string{"listener", "reason"}),
	}
}

// The reasons for which a connection is refused: the listener or the address has reached its bound.
const (
	full    = "listener"
	tooMany = "address"
)

// Limit returns l with the bounds of o. A connection above a bound is closed at once: if it
// waited in a queue, the client with the most connections would delay all others.
func Limit(l net.Listener, o Options) net.Listener {
	for _, reason := range []string{full, tooMany} {
		o.Metrics.refused.WithLabelValues(o.Name, reason)
	}
	return &listener{
		Listener: l, opts: o, byAddress: map[netip.Prefix]int{},
		gauge: o.Metrics.open.WithLabelValues(o.Name),
	}
}

type listener struct {
	net.Listener
	opts  Options
	gauge prometheus.Gauge

	mu        sync.Mutex
	open      int
	byAddress map[netip.Prefix]int // without those that are exempt
}

// Accept returns the next connection that is within the bounds.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		key := l.keyOf(c.RemoteAddr())
		reason := l.take(key)
		if reason == "" {
			return &conn{Conn: c, release: sync.OnceFunc(func() { l.release(key) })}, nil
		}
		l.opts.Metrics.refused.WithLabelValues(l.opts.Name, reason).Inc()
		_ = c.Close() // nothing was sent
	}
}

// keyOf is the network whose connections count together; the zero Prefix for an address without a bound.
func (l *listener) keyOf(remote net.Addr) netip.Prefix {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	address := tcp.AddrPort().Addr().Unmap().WithZone("")
	if l.opts.Exempt != nil && l.opts.Exempt(address) {
		return netip.Prefix{}
	}
	return peer.Network(address)
}

// take counts a connection, or says why it is refused.
func (l *listener) take(key netip.Prefix) (reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if key.IsValid() && l.byAddress[key] >= l.opts.MaxPerAddress {
		return tooMany
	}
	if l.open >= l.opts.Max {
		return full
	}
	l.open++
	if key.IsValid() {
		l.byAddress[key]++
	}
	l.gauge.Set(float64(l.open))
	return ""
}

func (l *listener) release(key netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byAddress[key]--; l.byAddress[key] <= 0 {
		delete(l.byAddress, key)
	}
	l.gauge.Set(float64(l.open))
}

type conn struct {
	net.Conn
	release func()
}

// Close closes the connection and frees its place, once.
func (c *conn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
