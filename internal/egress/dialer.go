package egress

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"time"
)

const (
	// attemptDelay is how long an address has before the next one is tried too (RFC 8305, section 5).
	attemptDelay = 250 * time.Millisecond
	// maxAddresses bounds the addresses of a name that are tried.
	maxAddresses = 16
)

// Dialer opens connections that a Guard lets through, directly or by a proxy.
// Safe for concurrent use.
type Dialer struct {
	Guard *Guard
	Proxy *Proxy // nil: directly
	// Timeout bounds name resolution and TCP, including TLS to a proxy. The answer of a proxy
	// may take as long again.
	Timeout time.Duration
}

// DialContext connects to address, a host and a port. ErrRefused when the address must not be
// reached. Without a proxy, the guard checks the resolved address at the moment of the
// connection. With a proxy, it checks only the name or literal address: the proxy resolves the
// name and must guard itself. Errors of the proxy are a *ProxyError.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if d.Proxy != nil {
		if err := d.Guard.checkName(host); err != nil {
			return nil, err
		}
		return d.Proxy.connect(ctx, address, d.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	addrs, err := d.Guard.o.Resolver.LookupNetIP(ctx, "ip", d.Guard.absolute(host))
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return d.first(ctx, network, port, ordered(addrs))
}

// ordered takes the families in turn, IPv6 first (RFC 8305, section 4).
func ordered(addrs []netip.Addr) []netip.Addr {
	var v6, v4, all []netip.Addr
	for _, a := range addrs {
		if a.Unmap().Is4() {
			v4 = append(v4, a.Unmap())
		} else {
			v6 = append(v6, a)
		}
	}
	for i := range max(len(v6), len(v4)) {
		if i < len(v6) {
			all = append(all, v6[i])
		}
		if i < len(v4) {
			all = append(all, v4[i])
		}
	}
	return all[:min(len(all), maxAddresses)]
}

// first connects to the first address that answers. An address is tried when the one before it has
// failed, or after attemptDelay. The error is that of the address that failed first.
func (d *Dialer) first(ctx context.Context, network, port string, addrs []netip.Addr) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other dials
	type outcome struct {
		conn net.Conn
		err  error
	}
	outcomes := make(chan outcome)
	dialer := net.Dialer{Control: d.Guard.control}
	dial := func(to netip.Addr) {
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(to.String(), port))
		select {
		case outcomes <- outcome{conn, err}:
		case <-ctx.Done():
			if err == nil {
				conn.Close()
			}
		}
	}
	var failed error
	delay := time.NewTimer(0)
	defer delay.Stop()
	for running := 0; running > 0 || len(addrs) > 0; {
		next := delay.C
		if len(addrs) == 0 {
			next = nil
		}
		select {
		case <-next:
			go dial(addrs[0])
			addrs, running = addrs[1:], running+1
			delay.Reset(attemptDelay)
		case o := <-outcomes:
			if o.err == nil {
				return o.conn, nil
			}
			failed, running = cmp.Or(failed, o.err), running-1
			delay.Reset(0)
		case <-ctx.Done():
			return nil, cmp.Or[error](failed, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()})
		}
	}
	return nil, failed
}
