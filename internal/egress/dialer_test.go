package egress_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/dnstest"
	"spendhook/internal/egress"
)

// swallow makes an address that takes no further connections and does not say so: a listener whose queue
// is full.
func swallow(t *testing.T, addr string, port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { _ = syscall.Close(fd) })
		err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: netip.MustParseAddr(addr).As4()})
	}
	if err == nil {
		err = syscall.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	// One connection is queued, and Linux drops the packets of the next.
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp4", fmt.Sprintf("%s:%d", addr, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
}

// starts notes which addresses were being tried when the live one was first tried.
type starts struct {
	live  string
	began time.Time

	mu     sync.Mutex
	tried  []string // now
	beside []string // at that time
	after  time.Duration
}

func (s *starts) follow(ctx context.Context) context.Context {
	s.began = time.Now()
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		ConnectStart: func(network, address string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case address == s.live:
				s.beside, s.after = slices.Clone(s.tried), time.Since(s.began)
			case network == "tcp": // not of the name server
				s.tried = append(s.tried, address)
			}
		},
		ConnectDone: func(_, address string, _ error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.tried = slices.DeleteFunc(s.tried, func(a string) bool { return a == address })
		},
	})
}

func TestTheAddressThatLivesIsReached(t *testing.T) {
	t.Parallel()
	receiver, accepted := countingListener(t)
	_, port, _ := net.SplitHostPort(receiver)
	live := netip.MustParseAddrPort(receiver)
	dead := []string{"127.1.0.1", "127.1.0.2", "127.1.0.3", "127.1.0.4", "127.1.0.5"}
	for _, addr := range dead {
		swallow(t, addr, int(live.Port()))
	}
	for name, addrs := range map[string]string{
		"after addresses that swallow packets": strings.Join(dead, ",") + ",127.0.0.1",
		"after addresses that refuse":          "127.1.0.6,::1,127.1.0.7,127.0.0.1",
		"after a refused address":              "10.0.0.1,127.0.0.1",
		"alone":                                "127.0.0.1",
	} {
		d := &egress.Dialer{
			Guard:   egress.New(egress.Options{AllowLoopback: true, Resolver: dnstest.Resolver(t, addrs)}),
			Timeout: time.Minute,
		}
		before := accepted.Load()
		s := &starts{live: receiver}
		conn, err := d.DialContext(s.follow(t.Context()), "tcp", net.JoinHostPort("hooks.example.com", port))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, _ = conn.Read(make([]byte, 1)) // until it is accepted
		conn.Close()
		if accepted.Load() != before+1 {
			t.Errorf("%s: %d connections", name, accepted.Load()-before)
		}
		// RFC 8305: each is tried 250 ms after the one before, which goes on.
		s.mu.Lock()
		if strings.Contains(name, "swallow") && (len(s.beside) != len(dead) || s.after < time.Duration(len(dead))*250*time.Millisecond) {
			t.Errorf("%s: the live one was tried after %v, beside %v", name, s.after, s.beside)
		}
		s.mu.Unlock()
	}
}

func TestNoAddressLives(t *testing.T) {
	t.Parallel()
	receiver, _ := countingListener(t)
	port := netip.MustParseAddrPort(receiver).Port()
	swallow(t, "127.2.0.1", int(port))
	for addrs, want := range map[string]func(error) bool{
		"127.2.0.1": func(err error) bool {
			var op *net.OpError
			return errors.As(err, &op) && op.Op == "dial" && op.Timeout()
		},
		"10.0.0.1,127.2.0.1":  func(err error) bool { return errors.Is(err, egress.ErrRefused) },
		"127.2.0.2,127.2.0.3": func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) },
	} {
		d := &egress.Dialer{
			Guard:   egress.New(egress.Options{AllowLoopback: true, Resolver: dnstest.Resolver(t, addrs)}),
			Timeout: 3 * time.Second,
		}
		if _, err := d.DialContext(t.Context(), "tcp", fmt.Sprintf("hooks.example.com:%d", port)); !want(err) {
			t.Errorf("%s: %v", addrs, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := &egress.Dialer{Guard: egress.New(egress.Options{AllowLoopback: true}), Timeout: time.Minute}
	if _, err := d.DialContext(ctx, "tcp", receiver); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
