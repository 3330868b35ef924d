package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"spendhook/config"
)

func TestEgressAddresses(t *testing.T) {
	t.Parallel()
	c, err := config.Load("testdata/good/addresses.yml", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range c.EgressAddresses() {
		got = append(got, fmt.Sprint(s.Range, " ", s.From.UTC().Format(time.DateOnly), " ", s.Until.UTC().Format(time.DateTime)))
	}
	const never = "0001-01-01 00:00:00"
	want := []string{
		"203.0.113.7/32 0001-01-01 2026-12-01 00:00:00",
		"203.0.113.8/32 2026-12-01 " + never,
		"198.51.100.0/24 0001-01-01 " + never,
		"2001:db8::1/128 2026-12-01 2027-12-01 00:00:00",
		"10.0.0.0/8 0001-01-01 " + never,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("read\n%s", strings.Join(got, "\n"))
	}
}

func TestEgressAddressesFromTheEnvironment(t *testing.T) {
	t.Parallel()
	c, err := config.Load("", []string{`SPENDHOOK_EGRESS_ADDRESSES={cidr: 203.0.113.7}, {cidr: "2001:db8::/64", valid_from: "2026-12-01T00:00:00Z"}`}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if list := c.EgressAddresses(); len(list) != 2 || list[0].Range.String() != "203.0.113.7/32" || list[1].Range.String() != "2001:db8::/64" || list[1].From.IsZero() {
		t.Errorf("read %v", list)
	}
	for _, bad := range []string{"203.0.113.7", "{cidr: 203.0.113.7, validFrom: x}", "{cidr: [203.0.113.7]}"} {
		_, err = config.Load("", []string{"SPENDHOOK_EGRESS_ADDRESSES=" + bad}, nil)
		wantProblems(t, err, []string{"egress.addresses: SPENDHOOK_EGRESS_ADDRESSES: want a list, each cidr, and if wanted valid_from and valid_until"})
	}
}

func TestEgressAddressesAreAtMostAHundred(t *testing.T) {
	t.Parallel()
	list := func(n int) string {
		entries := make([]string, n)
		for i := range entries {
			entries[i] = fmt.Sprintf("{cidr: 203.0.113.%d}", i)
		}
		return "SPENDHOOK_EGRESS_ADDRESSES=" + strings.Join(entries, ", ")
	}
	if _, err := config.Load("", []string{list(100)}, nil); err != nil {
		t.Error(err)
	}
	_, err := config.Load("", []string{list(101)}, nil)
	wantProblems(t, err, []string{"egress.addresses: has 101 entries, want at most 100"})
}
