package egress_test

import (
	"net/netip"
	"testing"
	"time"

	"spendhook/internal/egress"
)

func TestSourceIsValidFromItsBeginToItsEnd(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	until := from.Add(time.Hour)
	for _, c := range []struct {
		source       egress.Source
		at           time.Time
		valid, ended bool
	}{
		{egress.Source{}, from, true, false},
		{egress.Source{From: from}, from.Add(-1), false, false},
		{egress.Source{From: from}, from, true, false},
		{egress.Source{From: from, Until: until}, until.Add(-1), true, false},
		{egress.Source{From: from, Until: until}, until, false, true},
		{egress.Source{Until: until}, from.Add(-time.Hour), true, false},
	} {
		if got := c.source.Valid(c.at); got != c.valid {
			t.Errorf("%+v at %v: valid is %v", c.source, c.at, got)
		}
		if got := c.source.Ended(c.at); got != c.ended {
			t.Errorf("%+v at %v: ended is %v", c.source, c.at, got)
		}
	}
}

func TestIsPublic(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1:248:1893:25c8:1946": true,
		"10.1.2.3": false, "127.0.0.1": false, "::1": false, "100.64.0.1": false, "fd00::1": false, "203.0.113.7": false, "::ffff:10.1.2.3": false,
	} {
		if got := egress.IsPublic(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
