package config

import (
	"fmt"
	"net/netip"
	"time"

	"spendhook/internal/egress"
	"spendhook/internal/invalid"
)

// maxEgressAddresses bounds egress.addresses.
const maxEgressAddresses = 100

// egressAddress is an address or a range from which deliveries come. The times are texts in RFC 3339;
// "" means no limit.
type egressAddress struct {
	CIDR       string `yaml:"cidr"`
	ValidFrom  string `yaml:"valid_from"`
	ValidUntil string `yaml:"valid_until"`
}

// EgressAddresses returns egress.addresses, in their order. The settings must be valid.
func (c *Config) EgressAddresses() []egress.Source {
	v := checker{&invalid.Error{}}
	list := make([]egress.Source, len(c.Egress.Addresses))
	for i, a := range c.Egress.Addresses {
		list[i] = v.egressAddress("", a)
	}
	return list
}

func (v checker) egressAddresses(list []egressAddress) {
	const key = "egress.addresses"
	if len(list) > maxEgressAddresses {
		v.Add(key, "OUT_OF_RANGE", "has %d entries, want at most %d", len(list), maxEgressAddresses)
		return
	}
	seen := map[netip.Prefix]bool{}
	for i, a := range list {
		key := fmt.Sprintf("%s[%d]", key, i)
		source := v.egressAddress(key, a)
		if source.Range.IsValid() && seen[source.Range] {
			v.Add(key+".cidr", "DUPLICATE", "is in the list already: %v", source.Range)
		}
		seen[source.Range] = true
	}
}

// egressAddress parses an entry. An invalid part is a problem, and stays zero.
func (v checker) egressAddress(key string, a egressAddress) egress.Source {
	s := egress.Source{
		Range: v.addressRange(key+".cidr", a.CIDR),
		From:  v.time(key+".valid_from", a.ValidFrom),
		Until: v.time(key+".valid_until", a.ValidUntil),
	}
	if !s.Until.IsZero() && !s.Until.After(s.From) {
		v.Add(key+".valid_until", "INVALID", "is not after valid_from")
	}
	return s
}

// addressRange parses a range, or an address as the range of this address alone.
func (v checker) addressRange(key, text string) netip.Prefix {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		var address netip.Addr
		if address, err = netip.ParseAddr(text); err == nil && address.Zone() == "" {
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
	}
	switch {
	case !prefix.IsValid() || prefix.Addr().Is4In6():
		v.Add(key, "INVALID", "want an address or a range, as in 203.0.113.7 or 203.0.113.0/24")
	case prefix != prefix.Masked():
		v.Add(key, "INVALID", "has bits set after the length of its prefix: want %v, or a longer prefix", prefix.Masked())
	case prefix.Bits() < leastBits(prefix.Addr()):
		v.unsafe(key, "%v would make receivers allow far too many addresses: list only those that deliveries come from", prefix)
	default:
		return prefix
	}
	return netip.Prefix{}
}

// leastBits is the length of the prefix of the largest range that one owner may have.
func leastBits(address netip.Addr) int {
	if address.Is4() {
		return 8
	}
	return 16
}

// time parses a time; "" is the zero time.
func (v checker) time(key, text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		v.Add(key, "INVALID", "want a time, as in 2026-12-01T00:00:00Z")
	}
	return t
}
