package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"spendhook/internal/egress"
)

// addressNotice is the time before a change of egress.addresses from which doctor names it.
const addressNotice = 7 * 24 * time.Hour

// internet has public addresses of IPv4 and IPv6 that always exist: those of a.root-servers.net. No
// packet is sent to them.
var internet = []string{"198.41.0.4:53", "[2001:503:ba3e::2:30]:53"}

// egressAddresses compares egress.addresses with the addresses from which deliveries come, as far as
// this machine knows them.
func (d *doctor) egressAddresses(ctx context.Context) {
	list, now := d.cfg.EgressAddresses(), time.Now()
	if len(list) == 0 {
		d.okText = "none are published to receivers: egress.addresses is not set"
		return
	}
	d.changesOf(list, now)
	valid := slices.DeleteFunc(list, func(s egress.Source) bool { return !s.Valid(now) })
	switch {
	case len(valid) == 0:
		d.problem("list the addresses from which deliveries come now, without valid_from", "no range of egress.addresses is valid now: a receiver that allows only these refuses all deliveries")
	case d.cfg.Egress.ProxyURL != "":
		d.proxyAddresses(ctx, valid)
	default:
		d.localAddresses(valid, localAddresses(ctx))
	}
}

// changesOf names the ranges that begin or end soon, and those that are not public.
func (d *doctor) changesOf(list []egress.Source, now time.Time) {
	soon := func(t time.Time) bool { return t.After(now) && t.Before(now.Add(addressNotice)) }
	for _, s := range list {
		if soon(s.From) {
			d.note("%v becomes valid at %s", s.Range, s.From.UTC().Format(time.RFC3339))
		}
		if soon(s.Until) {
			d.warn("make sure that by then deliveries come only from the other ranges", "%v ends at %s", s.Range, s.Until.UTC().Format(time.RFC3339))
		}
		if !s.Ended(now) && !egress.IsPublic(s.Range.Addr()) {
			d.warn("list the public addresses of the NAT or the proxy, unless all receivers are in your own network", "%v is not public: receivers on the internet see another address", s.Range)
		}
	}
}

// localAddresses compares this machine's own addresses with the ranges that are valid now.
func (d *doctor) localAddresses(valid []egress.Source, local []netip.Addr) {
	if len(local) == 0 {
		d.note("cannot be checked from here: this machine has no route to the internet")
	}
	for _, a := range local {
		switch {
		case contains(valid, a):
			d.note("deliveries come from %v, which is listed", a)
		case egress.IsPublic(a):
			d.problem("add the address to egress.addresses, or correct the route", "deliveries come from %v, which is in no range that is valid now: a receiver that allows only these refuses them", a)
		default:
			d.note("cannot be checked from here: behind NAT (this machine has the address %v); the public addresses of the NAT must be listed", a)
		}
	}
}

// proxyAddresses compares the addresses of the egress proxy's name with the ranges that are valid now. The
// proxy may call receivers from other addresses.
func (d *doctor) proxyAddresses(ctx context.Context, valid []egress.Source) {
	addresses, err := d.resolveProxy(ctx)
	if err != nil {
		d.note("cannot be checked: the name of the egress proxy does not resolve (%v); the addresses from which the proxy calls receivers must be listed", err)
		return
	}
	for _, a := range addresses {
		switch {
		case contains(valid, a):
			d.note("deliveries go through the egress proxy %v, which is listed; all addresses from which it calls receivers must be", a)
		case egress.IsPublic(a):
			d.warn("list the addresses from which the proxy calls receivers; leave this one out only if it calls none from it",
				"deliveries go through the egress proxy %v, which is in no range that is valid now", a)
		default:
			d.note("cannot be checked from here: the egress proxy has the internal address %v; the public addresses from which it calls receivers must be listed", a)
		}
	}
}

// resolveProxy returns the addresses of the egress proxy.
func (d *doctor) resolveProxy(ctx context.Context) ([]netip.Addr, error) {
	proxy, err := egress.NewProxy(d.cfg.Egress.ProxyURL.Reveal(), nil)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(proxy.Address())
	if err != nil {
		return nil, err
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i, a := range found {
		found[i] = a.Unmap()
	}
	return found, err
}

// localAddresses returns the addresses from which this machine would call the internet, one for each
// version of IP that has a route. It connects UDP sockets, which sends no packet.
func localAddresses(ctx context.Context) (found []netip.Addr) {
	for _, target := range internet {
		conn, err := new(net.Dialer).DialContext(ctx, "udp", target)
		if err != nil {
			continue // no route
		}
		if a, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
			found = append(found, a.Addr().Unmap().WithZone(""))
		}
		_ = conn.Close() // nothing was written
	}
	return found
}

// contains reports whether one of the ranges has the address.
func contains(ranges []egress.Source, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(s egress.Source) bool { return s.Range.Contains(a) })
}

// note adds a finding that is no fault.
func (d *doctor) note(format string, args ...any) {
	d.findings = append(d.findings, finding{Check: d.current, Result: findingOK, Message: fmt.Sprintf(format, args...)})
}
