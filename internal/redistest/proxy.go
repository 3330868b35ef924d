package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2/proto"
)

// Proxy forwards connections of clients to a server. Its plan sees each exchange and simulates
// network failures. The methods of Proxy are safe for concurrent use.
type Proxy struct {
	tb       testing.TB
	to       string // the server's socket
	listener net.Listener
	done     sync.WaitGroup

	mu    sync.Mutex
	plan  Plan
	conns map[net.Conn]bool
	ended bool
}

// Plan is called twice for every exchange on a connection: with the request and a nil reply before
// the server gets the request, and with the request and the start of the reply before the client
// gets the reply. A request has the commands that were written together, for example a pipeline.
// False closes the connection: the first call then loses the request, the second one the reply. A
// slow plan delays its connection. Many goroutines call the plan.
type Plan func(request [][]string, reply []byte) (pass bool)

// NewProxy starts a proxy on a free port, which ends with the test. Without a plan it passes
// everything.
func NewProxy(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // answers at once
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	p := &Proxy{tb: tb, to: s.Socket(), listener: l, conns: map[net.Conn]bool{}}
	p.done.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// URL returns the proxy's address as a redis:// URL.
func (p *Proxy) URL() string { return "redis://" + p.listener.Addr().String() }

// Follow sets the plan. nil passes everything.
func (p *Proxy) Follow(plan Plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan = plan
}

// CutAll closes every connection. Clients can connect again.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.CutAll()
	p.done.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.done.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("unix", p.to) //nolint:noctx // answers at once
	if err != nil {
		return // the server is down
	}
	defer server.Close()
	if !p.add(client) {
		return
	}
	defer p.remove(client)
	x := &exchange{proxy: p, client: client, server: server}
	var replies sync.WaitGroup
	replies.Go(func() {
		x.passReplies()
		_ = client.Close()
	})
	x.passRequests()
	_ = server.Close()
	replies.Wait()
}

func (p *Proxy) add(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.conns[c] = true
	}
	return !p.ended
}

func (p *Proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

func (p *Proxy) passes(request [][]string, reply []byte) bool {
	p.mu.Lock()
	plan := p.plan
	p.mu.Unlock()
	return plan == nil || plan(request, reply)
}

// exchange is one connection with its current request.
type exchange struct {
	proxy          *Proxy
	client, server net.Conn

	mu      sync.Mutex
	request [][]string // the last request, until its reply begins
}

const proxyBuffer = 64 << 10

// passRequests returns when one of the two connections ends.
func (x *exchange) passRequests() {
	var held []byte
	buf := make([]byte, proxyBuffer)
	for {
		n, err := x.client.Read(buf)
		if err != nil {
			return
		}
		held = append(held, buf[:n]...)
		request, err := parseCommands(held)
		if errors.Is(err, io.EOF) {
			continue // the request is incomplete
		}
		if err != nil {
			x.proxy.tb.Errorf("redistest: the proxy does not understand a request: %v", err)
			return
		}
		if !x.proxy.passes(request, nil) {
			return
		}
		x.setRequest(request)
		if _, err := x.server.Write(held); err != nil {
			return
		}
		held = held[:0]
	}
}

func (x *exchange) setRequest(request [][]string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.request = request
}

// passReplies returns when one of the two connections ends.
func (x *exchange) passReplies() {
	buf := make([]byte, proxyBuffer)
	for {
		n, err := x.server.Read(buf)
		if err != nil {
			return
		}
		x.mu.Lock()
		request := x.request
		x.request = nil
		x.mu.Unlock()
		if request != nil && !x.proxy.passes(request, buf[:n]) {
			return
		}
		if _, err := x.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// parseCommands parses the commands of a client. The error is io.EOF if the last one is not
// complete.
func parseCommands(b []byte) (commands [][]string, err error) {
	r := bufio.NewReader(bytes.NewReader(b))
	for {
		if _, err := r.Peek(1); err != nil {
			return commands, nil //nolint:nilerr // all are read
		}
		text, err := proto.Read(r)
		if err != nil {
			return nil, err
		}
		command, err := proto.ReadStrings(text)
		if err != nil {
			return nil, err
		}
		commands = append(commands, command)
	}
}
