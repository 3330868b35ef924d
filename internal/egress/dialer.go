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
	// Timeout is the limit for name resolution and TCP. With a proxy it is also the limit
	// for TLS with the proxy, and again for its answer. 0 means 5 s.
	Timeout time.Duration
}

// DialContext connects to address, a host and a port. ErrRefused when the address must not be
// reached. Without a proxy, the guard checks the resolved address at the moment of the
// connection. With a proxy, it checks only the name or literal address: the proxy resolves the
// name and must guard itself. Errors of the proxy are a *ProxyError.
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
