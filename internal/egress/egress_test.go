package egress_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
)

// refused are addresses that must never be reached, with why.
var refused = map[string]string{
	"127.0.0.1":                "loopback",
	"127.8.9.10":               "loopback",
	"0.0.0.0":                  "this host",
	"10.1.2.3":                 "private",
	"172.16.0.1":               "private",
	"172.31.255.255":           "private",
	"192.168.1.1":              "private",
	"100.64.0.1":               "carrier-grade NAT",
	"169.254.169.254":          "metadata",
	"100.100.100.200":          "metadata of Alibaba, in the CGNAT range",
	"168.63.129.16":            "metadata of Azure",
	"192.0.0.192":              "metadata of Oracle",
	"224.0.0.1":                "multicast",
	"255.255.255.255":          "broadcast",
	"198.18.0.1":               "benchmarking",
	"203.0.113.7":              "documentation",
	"::":                       "unspecified",
	"::1":                      "loopback",
	"fe80::1":                  "link-local",
	"fe80::1%lo":               "link-local with a zone",
	"2606:4700::1%lo":          "a zone on a public address",
	"fc00::1":                  "unique local",
	"fd00:ec2::254":            "metadata of AWS",
	"ff02::1":                  "multicast",
	"::ffff:127.0.0.1":         "v4-mapped loopback",
	"::ffff:a9fe:a9fe":         "v4-mapped metadata",
	"::ffff:168.63.129.16":     "v4-mapped Azure",
	"::127.0.0.1":              "v4-compatible loopback",
	"64:ff9b::7f00:1":          "NAT64 loopback",
	"64:ff9b::169.254.169.254": "NAT64 metadata",
	"64:ff9b:1::1":             "local NAT64",
	"2002:7f00:1::":            "6to4 loopback",
	"2001:0:4136:e378::1":      "Teredo",
	"2001:db8::1":              "documentation",
}

func TestCheckRefusesSpecialAddresses(t *testing.T) {
	t.Parallel()
	g := egress.New(egress.Options{})
	for addr, why := range refused {
		for _, host := range []string{addr, "[" + addr + "]"} {
			if err := g.Check(t.Context(), host); !errors.Is(err, egress.ErrRefused) {
				t.Errorf("Check(%s), %s: %v, want ErrRefused", host, why, err)
			}
		}
	}
}

func TestControlRefusesSpecialAddresses(t *testing.T) {
	t.Parallel()
	g := egress.New(egress.Options{})
	for addr, why := range refused {
		network := "tcp4"
		if strings.Contains(addr, ":") {
			network = "tcp6"
		}
		if err := g.Control(network, net.JoinHostPort(addr, "443"), nil); !errors.Is(err, egress.ErrRefused) {
			t.Errorf("Control(%s), %s: %v, want ErrRefused", addr, why, err)
		}
	}
}

func TestCheckRefusesOtherSpellingsOfIPv4(t *testing.T) {
	t.Parallel()
	g := egress.New(egress.Options{Resolver: dnstest.Resolver(t)})
	for _, host := range []string{
		"2130706433", "0x7f000001", "0X7F000001", "017700000001", "127.1", "127.0.1", "0177.0.0.1",
		"0x7f.0.0.1", "127.0.0.0x1", "127.0.0.1.", "127.000.000.001", "1.2.3.4.5", "256.1.1.1", "0x", "8.8",
	} {
		if err := g.Check(t.Context(), host); !errors.Is(err, egress.ErrRefused) {
			t.Errorf("Check(%s): %v, want ErrRefused", host, err)
		}
	}
}

func TestPublicAddressesPassOnAnyPort(t *testing.T) {
	t.Parallel()
	g := egress.New(egress.Options{})
	for _, host := range []string{"93.184.216.34", "2606:4700::1", "::ffff:93.184.216.34"} {
		if err := g.Check(t.Context(), host); err != nil {
			t.Errorf("Check(%s): %v", host, err)
		}
	}
	for _, address := range []string{"93.184.216.34:443", "93.184.216.34:8443", "93.184.216.34:1"} {
		if err := g.Control("tcp4", address, nil); err != nil {
			t.Errorf("Control(%s): %v", address, err)
		}
	}
}

func TestControlAllowsOnlyTCP(t *testing.T) {
	t.Parallel()
	g := egress.New(egress.Options{})
	for _, network := range []string{"udp4", "unix", "ip4"} {
		if err := g.Control(network, "93.184.216.34:443", nil); !errors.Is(err, egress.ErrRefused) {
			t.Errorf("Control(%s): %v, want ErrRefused", network, err)
		}
	}
}

func TestAllowedRangesOpenNoOtherAddress(t *testing.T) {
	t.Parallel()
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")}
	for name, test := range map[string]struct {
		options         egress.Options
		passes, refuses []string
	}{
		"cidrs": {
			egress.Options{AllowCIDRs: cidrs},
			[]string{"10.1.2.3", "fd00:1::1"},
			[]string{"10.2.0.1", "fd00:2::1", "127.0.0.1", "169.254.169.254"},
		},
		"loopback": {
			egress.Options{AllowLoopback: true},
			[]string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"},
			[]string{"10.0.0.1", "192.168.0.1", "169.254.169.254", "0.0.0.0"},
		},
	} {
		g := egress.New(test.options)
		for _, host := range test.passes {
			if err := g.Check(t.Context(), host); err != nil {
				t.Errorf("%s: Check(%s): %v", name, host, err)
			}
		}
		for _, host := range test.refuses {
			if err := g.Check(t.Context(), host); !errors.Is(err, egress.ErrRefused) {
				t.Errorf("%s: Check(%s): %v, want ErrRefused", name, host, err)
			}
		}
	}
}

func TestCheckResolvesNames(t *testing.T) {
	t.Parallel()
	public := egress.New(egress.Options{Resolver: dnstest.Resolver(t, "93.184.216.34")})
	if err := public.Check(t.Context(), "hooks.example.com."); err != nil {
		t.Errorf("a public name: %v", err)
	}
	inside := egress.New(egress.Options{Resolver: dnstest.Resolver(t, "10.0.0.9")})
	err := inside.Check(t.Context(), "hooks.example.com.")
	if !errors.Is(err, egress.ErrRefused) {
		t.Fatalf("a name inside: %v, want ErrRefused", err)
	}
	if strings.Contains(err.Error(), "10.0.0.9") {
		t.Errorf("the error contains the internal address: %v", err)
	}
}

// The answer does not reveal whether an internal name exists: the name is refused with and
// without an address, and search domains are not tried.
func TestInternalNamesAreRefusedUnresolved(t *testing.T) {
	t.Parallel()
	exists, none := dnstest.Resolver(t, "10.0.0.9"), dnstest.Resolver(t)
	for _, name := range []string{
		"redis", "redis.", "db.internal", "metadata.google.internal", "api.prod.svc.cluster.local", "nas.lan", "Router.Home", "x.home.arpa",
	} {
		var answers []string
		for _, resolver := range []*net.Resolver{exists, none} {
			err := egress.New(egress.Options{Resolver: resolver}).Check(t.Context(), name)
			if !errors.Is(err, egress.ErrRefused) {
				t.Errorf("%s: %v, want ErrRefused", name, err)
			} else {
				answers = append(answers, err.Error())
			}
		}
		if len(answers) == 2 && answers[0] != answers[1] {
			t.Errorf("%s: the answers differ: %q", name, answers)
		}
		ten := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		if err := egress.New(egress.Options{Resolver: exists, AllowCIDRs: ten}).Check(t.Context(), name); err != nil {
			t.Errorf("%s, where its address is allowed: %v", name, err)
		}
	}
	if err := egress.New(egress.Options{Resolver: exists}).Check(t.Context(), "internal.example.com"); !errors.Is(err, egress.ErrRefused) {
		t.Errorf("a public name of an address inside: %v", err)
	}
}

// The answer does not reveal whether a public name has an internal address in the local
// resolver: a name without an address gets the same error.
func TestUnknownNamesAreRefusedLikeInternalOnes(t *testing.T) {
	t.Parallel()
	const name = "db.example.com."
	inside := egress.New(egress.Options{Resolver: dnstest.Resolver(t, "10.0.0.9")}).Check(t.Context(), name)
	none := egress.New(egress.Options{Resolver: dnstest.Resolver(t)}).Check(t.Context(), name)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	unanswered := egress.New(egress.Options{Resolver: dnstest.Resolver(t)}).Check(cancelled, name)
	for _, err := range []error{inside, none, unanswered} {
		if !errors.Is(err, egress.ErrRefused) || err.Error() != inside.Error() {
			t.Errorf("%v, want %v", err, inside)
		}
	}
	if err := egress.New(egress.Options{Resolver: dnstest.Resolver(t), Proxied: true}).Check(t.Context(), name); err != nil {
		t.Errorf("a name that the proxy resolves: %v", err)
	}
	ten := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	if err := egress.New(egress.Options{Resolver: dnstest.Resolver(t), AllowCIDRs: ten}).Check(t.Context(), name); err != nil {
		t.Errorf("an unknown name, where addresses inside are allowed: %v", err)
	}
}

// A name passes Check with a public address and then resolves to loopback: the check of the
// connection refuses it.
func TestRebindingMakesNoConnection(t *testing.T) {
	t.Parallel()
	receiver, accepted := countingListener(t)
	_, port, _ := net.SplitHostPort(receiver)
	const name = "rebind.example.com."

	resolver := dnstest.Resolver(t, "93.184.216.34", "127.0.0.1")
	g := egress.New(egress.Options{Resolver: resolver})
	if err := g.Check(t.Context(), name); err != nil {
		t.Fatalf("Check before the rebinding: %v", err)
	}
	guarded := net.Dialer{Resolver: resolver, Control: g.Control, Timeout: 5 * time.Second}
	if _, err := guarded.DialContext(t.Context(), "tcp", net.JoinHostPort(name, port)); !errors.Is(err, egress.ErrRefused) {
		t.Errorf("dial after the rebinding: %v, want ErrRefused", err)
	}

	// The same dial without the guard does get through, and is the only one.
	open := net.Dialer{Resolver: resolver, Timeout: 5 * time.Second}
	conn, err := open.DialContext(t.Context(), "tcp", net.JoinHostPort(name, port))
	if err != nil {
		t.Fatalf("unguarded dial: %v", err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the listener sent something")
	}
	if n := accepted.Load(); n != 1 {
		t.Errorf("%d connections reached the listener, want the unguarded one only", n)
	}
}

// countingListener counts connections and closes each at once.
func countingListener(t *testing.T) (address string, accepted *atomic.Int64) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			conn.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String(), accepted
}

// Check and Control give the same verdict on every literal address.
func TestCheckAndControlAgree(t *testing.T) {
	t.Parallel()
	g := egress.New(egress.Options{})
	rapid.Check(t, func(t *rapid.T) {
		addr := netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4")))
		network := "tcp4"
		if rapid.Bool().Draw(t, "six") {
			addr = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6"))).Unmap()
			network = "tcp6"
		}
		check := g.Check(context.Background(), addr.String())
		control := g.Control(network, netip.AddrPortFrom(addr, 443).String(), nil)
		if (check == nil) != (control == nil) {
			t.Fatalf("%s: Check %v, Control %v", addr, check, control)
		}
	})
}

func FuzzCheck(f *testing.F) {
	for addr := range refused {
		f.Add(addr)
	}
	for _, host := range []string{"", ".", "0x7f.1", "[::1", "a..b", "\x00", "xn--", "1.2.3.4%25lo"} {
		f.Add(host)
	}
	cancelled, cancel := context.WithCancel(f.Context())
	cancel() // literals only: nothing is looked up
	g := egress.New(egress.Options{})
	f.Fuzz(func(t *testing.T, host string) {
		err := g.Check(cancelled, host)
		if err == nil && net.ParseIP(host) != nil && net.ParseIP(host).IsLoopback() {
			t.Errorf("Check(%q) let loopback pass", host)
		}
	})
}
