// Package egress prevents outgoing connections to addresses that clients must not reach
// through this daemon: private, loopback, link-local, metadata, carrier-grade NAT,
// multicast and all other special-purpose ranges.
//
// The effective check is control: it sees the address of each connection after name
// resolution, so that a changed DNS answer (DNS rebinding) does not bypass it. Check is an
// early check when a URL is registered.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// ErrRefused is wrapped by every refusal of this package.
var ErrRefused = errors.New("destination address is refused")

// lookupTimeout bounds the name resolution of Check.
const lookupTimeout = 5 * time.Second

// metadata are the addresses of cloud metadata services, which give credentials to any process
// of a machine. Azure's address is in a public range and in no registry of special-purpose
// addresses. An allowed range opens one of them only if the range is that single address.
var metadata = []netip.Addr{
	netip.MustParseAddr("169.254.169.254"), // AWS, Google, Azure, OpenStack, Oracle and others
	netip.MustParseAddr("169.254.170.2"),   // AWS, credentials of containers
	netip.MustParseAddr("169.254.170.23"),  // AWS, credentials of pods
	netip.MustParseAddr("100.100.100.200"), // Alibaba
	netip.MustParseAddr("192.0.0.192"),     // Oracle
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("fd00:ec2::23"),    // AWS, credentials of pods
	netip.MustParseAddr("fd20:ce::254"),    // Google
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// Options says what a Guard lets through beside public addresses.
type Options struct {
	// AllowCIDRs are allowed even if another rule refuses them. A metadata address is allowed
	// only by a prefix of that one address.
	AllowCIDRs    []netip.Prefix
	AllowLoopback bool          // 127.0.0.0/8 and ::1, for --dev
	Proxied       bool          // a proxy resolves the names: Check does not resolve them
	Resolver      *net.Resolver // of Check and of a Dialer; nil: the system's
}

// Guard decides which addresses may be connected to. It allows all ports: receivers may use any
// port, and every port of a public address is public. Safe for concurrent use.
type Guard struct {
	o       Options // without AllowCIDRs, which rules has
	rules   atomic.Pointer[rules]
	version atomic.Uint64 // counts the calls of Allow
}

// rules are derived from the allowed ranges.
type rules struct {
	addresses *ssrf.Guardian
	cidrs     []netip.Prefix
	internal  bool // internal names are allowed, because some special addresses are
}

// metadata reports whether an address is refused although a range may allow it.
func (r *rules) metadata(a netip.Addr) bool {
	return slices.Contains(metadata, a) && !slices.Contains(r.cidrs, netip.PrefixFrom(a, a.BitLen()))
}

func (r *rules) refuse(a netip.Addr) bool {
	a = a.Unmap()
	return r.addresses.SafeAddr(a) != nil || r.metadata(a)
}

// New makes a Guard; the zero Options are the strict ones.
func New(o Options) *Guard {
	g := &Guard{o: o}
	g.Allow(o.AllowCIDRs)
	return g
}

// Version changes when the rules change. A connection that was made under another version may
// lead to an address that is refused now.
func (g *Guard) Version() uint64 { return g.version.Load() }

// Allow replaces Options.AllowCIDRs, and changes the Version.
func (g *Guard) Allow(cidrs []netip.Prefix) {
	allowed := cidrs
	if g.o.AllowLoopback {
		allowed = slices.Concat(cidrs, loopback)
	}
	v4, v6 := byFamily(allowed)
	g.rules.Store(&rules{
		addresses: ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...)),
		cidrs:     cidrs,
		internal:  len(allowed) > 0,
	})
	g.version.Add(1)
}

func byFamily(all []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, p := range all {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return v4, v6
}

// control is for net.Dialer.Control. It refuses, with ErrRefused, everything but TCP to an allowed
// address, before the first packet is sent. Never use it with a proxy: it would check the address of
// the proxy, not of the receiver.
func (g *Guard) control(network, address string, c syscall.RawConn) error {
	rules := g.rules.Load()
	if err := rules.addresses.Safe(network, address, c); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	target, err := netip.ParseAddrPort(address)
	if err != nil || rules.metadata(target.Addr().Unmap()) {
		return fmt.Errorf("%w: it is a cloud's metadata address", ErrRefused)
	}
	return nil
}

// Check refuses, with ErrRefused, a host (a name or a literal address, without
// port) that is, or now resolves to, an address that control would refuse; one
// such address among several is enough. It waits at most 5 s for the answer.
//
// The answer must not reveal internal names and addresses. It contains no resolved address; a
// name that can only be internal (isInternal) is refused without resolving it; and a name that
// does not resolve gets the same error as one that resolves to an internal address. If special
// addresses are allowed, the latter two are accepted: each connection is checked anyway.
func (g *Guard) Check(ctx context.Context, host string) error {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if err := g.checkName(host); err != nil {
		return err
	}
	if _, err := netip.ParseAddr(host); err == nil || g.o.Proxied {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addrs, err := g.o.Resolver.LookupNetIP(ctx, "ip", g.absolute(host))
	rules := g.rules.Load()
	if err != nil && !rules.internal || slices.ContainsFunc(addrs, rules.refuse) {
		return refusedAt(host)
	}
	return nil
}

// checkName checks a host without resolving it.
func (g *Guard) checkName(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		if g.rules.Load().refuse(addr) {
			return refusedAt(host)
		}
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case numeric(host):
		return fmt.Errorf("%w: %q is a number but not a plain IP address", ErrRefused, host)
	case !g.o.AllowLoopback && (name == "localhost" || strings.HasSuffix(name, ".localhost")): // RFC 6761, 6.3
		return fmt.Errorf("%w: %q is this machine", ErrRefused, host)
	case !g.rules.Load().internal && isInternal(name):
		return fmt.Errorf("%w: %q is a name inside a network", ErrRefused, host)
	}
	return nil
}

// isInternal reports whether no public DNS can have the name: it has one label, or is under a
// domain reserved for private networks (RFC 6762 with its appendix G, RFC 8375, ICANN's
// .internal).
func isInternal(name string) bool {
	return !strings.Contains(name, ".") || slices.ContainsFunc([]string{
		".internal", ".private", ".intranet", ".corp", ".home", ".lan", ".local", ".localdomain", ".home.arpa",
	}, func(domain string) bool { return strings.HasSuffix(name, domain) })
}

// absolute makes the name of a public host absolute, so that the resolver does not try its
// search domains, which are internal.
func (g *Guard) absolute(host string) string {
	if _, err := netip.ParseAddr(host); err == nil || g.rules.Load().internal || strings.HasSuffix(host, ".") {
		return host
	}
	return host + "."
}

func refusedAt(host string) error {
	return fmt.Errorf("%w: %q is not, or does not resolve to, a public address", ErrRefused, host)
}

// numeric reports whether some resolvers read the host as an IPv4 address in decimal, octal,
// hexadecimal or shortened form (inet_aton): its last label is a number. No public name ends in
// a number (WHATWG URL, "ends in a number").
func numeric(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := strings.ToLower(host[strings.LastIndexByte(host, '.')+1:])
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}
