package egress

import (
	"context"
	"net"
	"time"
)

// Dialer opens connections that a Guard lets through, directly or by a proxy.
// Safe for concurrent use.
type Dialer struct {
	Guard *Guard
	Proxy *Proxy // nil: directly
	// Timeout is for name resolution and TCP; by a proxy again for TLS with it
	// and again for its answer. 0 means 5 s.
	Timeout time.Duration
}

// DialContext connects to address, a host and a port. An address that may not
// be reached is ErrRefused. Directly, the guard judges the address that the
// name resolved to, at the moment of the connection. By a proxy it judges only
// what the address says itself: the proxy resolves the name, and guards.
// Faults of the proxy are a *ProxyError.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	timeout := d.Timeout
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if d.Proxy == nil {
		direct := net.Dialer{Timeout: timeout, Control: d.Guard.control, Resolver: d.Guard.resolver}
		return direct.DialContext(ctx, network, net.JoinHostPort(d.Guard.absolute(host), port))
	}
	if err := d.Guard.checkName(host); err != nil {
		return nil, err
	}
	return d.Proxy.connect(ctx, address, timeout)
}
