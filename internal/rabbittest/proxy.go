package rabbittest

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Proxy passes connections to a server, and may cut them. Its methods are safe for concurrent use.
type Proxy struct {
	to       string
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

// NewProxy starts a proxy on a free port, which ends with the test.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // answers at once
	if err != nil {
		tb.Fatalf("rabbittest: %v", err)
	}
	p := &Proxy{to: "127.0.0.1:" + strconv.Itoa(s.process.port), listener: l, conns: map[net.Conn]bool{}}
	p.done.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.Cut()
		p.done.Wait()
	})
	return p
}

// URL returns the proxy's address as an amqp:// URL.
func (p *Proxy) URL() string { return "amqp://guest:guest@" + p.listener.Addr().String() + "/" }

// Cut closes every connection, like the end of a client's process. Clients can connect again.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.done.Go(func() { p.pass(client) })
	}
}

func (p *Proxy) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.to) //nolint:noctx // answers at once
	if err != nil {
		return // the server is down
	}
	defer server.Close()
	p.mu.Lock()
	p.conns[client], p.conns[server] = true, true
	p.mu.Unlock()
	var answers sync.WaitGroup
	answers.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	answers.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}
