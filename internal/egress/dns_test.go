package egress_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// dnsServer answers the n-th question for an A record with its n-th address,
// the last one again and again; without addresses every name is unknown.
type dnsServer struct {
	conn    net.PacketConn
	mu      sync.Mutex
	answers []string
}

// resolverOf returns a resolver that asks a DNS server of the test.
func resolverOf(t *testing.T, answers ...string) *net.Resolver {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &dnsServer{conn: conn, answers: answers}
	done := make(chan struct{})
	go func() { defer close(done); s.serve() }()
	t.Cleanup(func() { conn.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

func (s *dnsServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer, err := s.answer(buf[:n]); err == nil {
			_, _ = s.conn.WriteTo(answer, from) // a lost answer fails the test by its timeout
		}
	}
}

func (s *dnsServer) answer(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	msg := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true},
		Questions: []dnsmessage.Question{q},
	}
	s.fill(&msg, q)
	return msg.Pack()
}

func (s *dnsServer) fill(msg *dnsmessage.Message, q dnsmessage.Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) == 0 {
		msg.RCode = dnsmessage.RCodeNameError
		return
	}
	if q.Type != dnsmessage.TypeA {
		return
	}
	addr := netip.MustParseAddr(s.answers[0])
	if len(s.answers) > 1 {
		s.answers = s.answers[1:]
	}
	msg.Answers = []dnsmessage.Resource{{
		Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
		Body:   &dnsmessage.AResource{A: addr.As4()},
	}}
}
