package requestmemory

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"spendhook/internal/peer"
)

// from is a request's context: of a connection, from an address.
func from(l *Bodies, address string) (connection func() context.Context) {
	c, _ := net.Pipe()
	conn := l.ConnContext(context.Background(), fixed{c, &net.TCPAddr{IP: net.ParseIP(address), Port: 1}})
	return func() context.Context {
		r, _ := http.NewRequestWithContext(conn, http.MethodPost, "/", nil)
		r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(address), 1).String()
		r, _ = peer.New(peer.Options{}).Resolve(r)
		return r.Context()
	}
}

type fixed struct {
	net.Conn
	remote net.Addr
}

func (f fixed) RemoteAddr() net.Addr { return f.remote }

// fill opens bodies of 1 MiB each until one is refused, closes them, and returns their number.
func fill(t *testing.T, l *Bodies, company string, ctx ...context.Context) (count int, empty func()) {
	t.Helper()
	var bodies []*Claim
	for {
		b := l.Open(ctx[count%len(ctx)], company)
		err := l.Grow(t.Context(), b, 1<<20)
		if errors.Is(err, ErrFull) {
			return count, func() {
				for _, b := range bodies {
					b.ShrinkTo(0)
				}
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, b)
		count++
	}
}

func contexts(l *Bodies, addresses ...string) (list []context.Context) {
	for _, a := range addresses {
		list = append(list, from(l, a)())
	}
	return list
}

// Large bodies are refused before the last eighth, per connection, address, company and in
// total. A small body, of the same client or another, is always accepted.
func TestLargeBodiesAreRefusedBeforeTheLastEighth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewBodies(func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.99") }, nil)
		connection := from(l, "192.0.2.1")
		many := contexts(l, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7", "192.0.2.9", "192.0.2.10")
		for name, c := range map[string]struct {
			ctx     []context.Context
			company string
			want    int // MiB
		}{
			"a connection":          {[]context.Context{connection(), connection()}, "", 14},
			"an address":            {contexts(l, "192.0.2.1", "192.0.2.1", "192.0.2.1"), "", 28},
			"an IPv6 /64":           {contexts(l, "2001:db8::1", "2001:db8::2", "2001:db8::3"), "", 28},
			"a proxy's connections": {contexts(l, "192.0.2.99"), "", 28}, // to one client
			"a company":             {many, "acme", 59},
			"all of them":           {many, "", 112},
		} {
			got, empty := fill(t, l, c.company, c.ctx...)
			if got != c.want {
				t.Errorf("%s: %d MiB, want %d", name, got, c.want)
			}
			for who, ctx := range map[string]context.Context{"itself": c.ctx[0], "another": from(l, "192.0.2.8")()} {
				b := l.Open(ctx, c.company)
				if err := l.Grow(ctx, b, smallBody); err != nil {
					t.Errorf("%s: a small body of %s: %v", name, who, err)
				}
				b.ShrinkTo(0)
			}
			empty()
			if l.limiter.used != 0 || len(l.limiter.held) != 0 {
				t.Fatalf("%s: %d bytes are still held, by %v", name, l.limiter.used, l.limiter.held)
			}
		}
	})
}

// A body waits at most a second for memory, and continues once memory is free.
func TestABodyWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewBodies(nil, nil)
		ctx := from(l, "192.0.2.1")()
		_, empty := fill(t, l, "", ctx)
		began := time.Now()
		if err := l.Grow(ctx, l.Open(ctx, ""), 1<<20); !errors.Is(err, ErrFull) || time.Since(began) != bodyWait {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		done := make(chan error)
		go func() { done <- l.Grow(ctx, l.Open(ctx, ""), 1<<20) }()
		synctest.Wait()
		empty()
		if err := <-done; err != nil {
			t.Errorf("once memory is free: %v", err)
		}
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := l.Grow(gone, l.Open(gone, ""), ofConnection); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that has gone: %v", err)
		}
	})
}
