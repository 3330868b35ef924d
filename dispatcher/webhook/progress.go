package webhook

import (
	"context"
	"net"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"spendhook/dispatcher/delivery/attempt"
)

// progress follows one attempt in net/http: it times the attempt, and tracks whether the attempt
// needs a connection. net/http may continue a dial after the attempt has ended. Therefore the methods
// are safe for concurrent use, and stop freezes the times.
type progress struct {
	now func() time.Time
	to  destination

	needed atomic.Pointer[chan struct{}] // closed once the attempt has a connection; nil: it needs none

	mu                                  sync.Mutex
	stopped                             bool
	resolving, connecting, began, first time.Time
	resolved, connected, handshake      time.Duration
	reached                             netip.Addr // of the receiver or proxy
}

type progressKey struct{}

// follow returns the context of the attempt. It has one trace: net/http joins several by reflection,
// which costs 5 % of a delivery.
func (p *progress) follow(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(context.WithValue(ctx, progressKey{}, p), &httptrace.ClientTrace{
		GetConn: func(string) { // called again after a stale connection
			needed := make(chan struct{})
			p.needed.Store(&needed)
		},
		GotConn: func(info httptrace.GotConnInfo) {
			p.noConnectionNeeded()
			p.note(func(now time.Time) {
				p.began, p.first = now, time.Time{}
				if tcp, ok := info.Conn.RemoteAddr().(*net.TCPAddr); ok {
					p.reached = tcp.AddrPort().Addr().Unmap().WithZone("")
				}
				if info.Reused { // the attempt does not use the connection that it began to dial
					p.resolved, p.connected, p.handshake = 0, 0, 0
				}
			})
		},
		DNSStart: func(httptrace.DNSStartInfo) { p.note(func(now time.Time) { p.resolving = now }) },
		DNSDone: func(httptrace.DNSDoneInfo) {
			p.note(func(now time.Time) { p.resolved = now.Sub(p.resolving) })
		},
		ConnectStart: func(string, string) {
			p.note(func(now time.Time) {
				if p.connecting.IsZero() { // several addresses may be tried at once
					p.connecting = now
				}
			})
		},
		ConnectDone: func(string, string, error) {
			p.note(func(now time.Time) { p.connected = now.Sub(p.connecting) })
		},
		GotFirstResponseByte: func() { p.note(func(now time.Time) { p.first = now }) },
	})
}

// noConnectionNeeded notes that the attempt has a connection or has ended.
func (p *progress) noConnectionNeeded() {
	if needed := p.needed.Swap(nil); needed != nil {
		close(*needed)
	}
}

func (p *progress) note(change func(now time.Time)) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		change(now)
	}
}

// noteHandshake notes the duration of a TLS handshake for the attempt of a dial, if any.
func noteHandshake(ctx context.Context, took time.Duration) {
	if p, ok := ctx.Value(progressKey{}).(*progress); ok {
		p.note(func(time.Time) { p.handshake = took })
	}
}

// stop freezes the times and returns the duration of each part of the attempt.
func (p *progress) stop() attempt.Timing {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	var firstByte, body time.Duration
	switch {
	case p.began.IsZero():
	case p.first.IsZero():
		firstByte = now.Sub(p.began)
	default:
		firstByte, body = p.first.Sub(p.began), now.Sub(p.first)
	}
	return attempt.NewTiming(p.resolved, p.connected, p.handshake, firstByte, body)
}
