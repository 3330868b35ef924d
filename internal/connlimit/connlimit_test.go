package connlimit_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"spendhook/internal/connlimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a listener whose connections come from any address.
type pipes struct{ incoming chan net.Conn }

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.incoming
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

type from struct {
	net.Conn
	address net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.address }

// dial connects from an address; let in is the server's side, or nil.
func dial(t *testing.T, p pipes, accepted <-chan net.Conn, address string) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { client.Close() })
	p.incoming <- from{server, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}
	closed := make(chan struct{})
	go func() {
		_, _ = client.Read(make([]byte, 1)) // until either side closes
		close(closed)
	}()
	select {
	case c := <-accepted:
		return c
	case <-closed:
		return nil
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	p := pipes{make(chan net.Conn)}
	l := connlimit.Limit(p, connlimit.Options{
		Max: 6, MaxPerAddress: 2, Name: "api", Metrics: connlimit.NewMetrics(reg),
		Exempt: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.1") },
	})
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	t.Cleanup(func() { close(p.incoming) })
	var open []net.Conn
	for i, step := range []struct {
		address  string
		accepted bool
	}{
		{"192.0.2.1:1", true},
		{"192.0.2.1:2", true},
		{"192.0.2.1:3", false},
		{"[::ffff:192.0.2.1]:4", false}, // the same one
		{"[2001:db8::1]:1", true},
		{"[2001:db8::2:1]:1", true},
		{"[2001:db8::ffff:3]:1", false}, // the same /64
		{"10.0.0.1:1", true},
		{"10.0.0.1:2", true},
		{"10.0.0.1:3", false}, // full
		{"192.0.2.9:1", false},
	} {
		c := dial(t, p, accepted, step.address)
		if (c != nil) != step.accepted {
			t.Fatalf("step %d, %s: let in %v", i, step.address, c != nil)
		}
		if c != nil {
			open = append(open, c)
		}
	}
	metrics := func(open, full, address string) {
		t.Helper()
		want := `
# HELP spendhook_connections_open Open connections, by listener.
# TYPE spendhook_connections_open gauge
spendhook_connections_open{listener="api"} ` + open + `
# HELP spendhook_connections_refused_total Connections closed at once because the listener or the address had reached its limit.
# TYPE spendhook_connections_refused_total counter
spendhook_connections_refused_total{listener="api",reason="address"} ` + address + `
spendhook_connections_refused_total{listener="api",reason="listener"} ` + full + `
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	metrics("6", "2", "3")
	for range 2 { // a second Close frees nothing
		_ = open[0].Close()
	}
	if open[0] = dial(t, p, accepted, "192.0.2.1:5"); open[0] == nil {
		t.Error("a closed connection still counts")
	}
	if dial(t, p, accepted, "192.0.2.7:1") != nil {
		t.Error("one closed connection freed two places")
	}
	for _, c := range open {
		c.Close()
	}
	metrics("0", "3", "3")
}

// TestRealConnections: the client of a refused connection sees its end at once.
func TestRealConnections(t *testing.T) {
	t.Parallel()
	inner, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := connlimit.Limit(inner, connlimit.Options{Max: 1, Name: "api", Metrics: connlimit.NewMetrics(nil)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	first, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	_ = second.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := second.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("one too many: %v", err)
	}
}
