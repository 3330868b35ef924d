// Package dnstest has a DNS server for tests.
package dnstest

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

type server struct {
	conn    net.PacketConn
	mu      sync.Mutex
	answers [][]netip.Addr
	queries map[dnsmessage.Type]int
}

// Resolver returns a resolver that uses a DNS server of the test. For every name, the n-th look-up
// returns the n-th answer: addresses, IPv4 or IPv6, with commas between them. Further look-ups return
// the last answer. Without answers every name is unknown.
func Resolver(tb testing.TB, answers ...string) *net.Resolver {
	tb.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(tb.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := &server{conn: conn, queries: map[dnsmessage.Type]int{}}
	for _, a := range answers {
		var addrs []netip.Addr
		for one := range strings.SplitSeq(a, ",") {
			addrs = append(addrs, netip.MustParseAddr(one))
		}
		s.answers = append(s.answers, addrs)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.serve() }()
	tb.Cleanup(func() {
		_ = conn.Close() // ends serve
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

func (s *server) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := s.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer, err := s.answer(buf[:n]); err == nil {
			_, _ = s.conn.WriteTo(answer, from) // without an answer the look-up times out and fails the test
		}
	}
}

func (s *server) answer(query []byte) ([]byte, error) {
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

func (s *server) fill(msg *dnsmessage.Message, q dnsmessage.Question) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) == 0 {
		msg.RCode = dnsmessage.RCodeNameError
		return
	}
	n := min(s.queries[q.Type], len(s.answers)-1) // a look-up has one query of each type, A and AAAA
	s.queries[q.Type]++
	header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
	for _, addr := range s.answers[n] {
		switch {
		case q.Type == dnsmessage.TypeA && addr.Is4():
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case q.Type == dnsmessage.TypeAAAA && addr.Is6():
			msg.Answers = append(msg.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
}
