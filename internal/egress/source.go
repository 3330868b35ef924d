package egress

import (
	"net/netip"
	"time"
)

// Source is a range of addresses from which deliveries come, with the time during which it is valid.
type Source struct {
	Range netip.Prefix
	From  time.Time // inclusive; zero: it is valid already
	Until time.Time // exclusive; zero: it has no end
}

// Ended reports whether the range is no longer valid at a time.
func (s Source) Ended(at time.Time) bool { return !s.Until.IsZero() && !at.Before(s.Until) }

// Valid reports whether the range is valid at a time.
func (s Source) Valid(at time.Time) bool { return !at.Before(s.From) && !s.Ended(at) }

var strict = New(Options{})

// IsPublic reports whether an address is public: the zero Options let connections to it through.
func IsPublic(a netip.Addr) bool { return !strict.rules.Load().refuse(a) }
