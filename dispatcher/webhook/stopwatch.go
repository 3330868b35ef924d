package webhook

import (
	"context"
	"net/http/httptrace"
	"sync"
	"time"

	"spendhook/dispatcher/delivery/attempt"
)

// stopwatch times one attempt. A dial that net/http began for the attempt may continue after
// its end, so that the methods are safe for concurrent use, and stop freezes the times.
type stopwatch struct {
	now func() time.Time

	mu                                  sync.Mutex
	stopped                             bool
	resolving, connecting, began, first time.Time
	resolved, connected, handshake      time.Duration
}

type stopwatchKey struct{}

func (s *stopwatch) trace(ctx context.Context) (context.Context, *httptrace.ClientTrace) {
	return context.WithValue(ctx, stopwatchKey{}, s), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			s.note(func(now time.Time) {
				s.began, s.first = now, time.Time{}
				if info.Reused { // a dial that was begun is not for this attempt
					s.resolved, s.connected, s.handshake = 0, 0, 0
				}
			})
		},
		DNSStart: func(httptrace.DNSStartInfo) { s.note(func(now time.Time) { s.resolving = now }) },
		DNSDone: func(httptrace.DNSDoneInfo) {
			s.note(func(now time.Time) { s.resolved = now.Sub(s.resolving) })
		},
		ConnectStart: func(string, string) {
			s.note(func(now time.Time) {
				if s.connecting.IsZero() { // several addresses may be tried at once
					s.connecting = now
				}
			})
		},
		ConnectDone: func(string, string, error) {
			s.note(func(now time.Time) { s.connected = now.Sub(s.connecting) })
		},
		GotFirstResponseByte: func() { s.note(func(now time.Time) { s.first = now }) },
	}
}

func (s *stopwatch) note(change func(now time.Time)) {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		change(now)
	}
}

// noteHandshake notes the duration of a TLS handshake for the attempt of a dial, if any.
func noteHandshake(ctx context.Context, took time.Duration) {
	if s, ok := ctx.Value(stopwatchKey{}).(*stopwatch); ok {
		s.note(func(time.Time) { s.handshake = took })
	}
}

// stop freezes the times and returns the duration of each part of the attempt.
func (s *stopwatch) stop() attempt.Timing {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	var firstByte, body time.Duration
	switch {
	case s.began.IsZero():
	case s.first.IsZero():
		firstByte = now.Sub(s.began)
	default:
		firstByte, body = s.first.Sub(s.began), now.Sub(s.first)
	}
	return attempt.NewTiming(s.resolved, s.connected, s.handshake, firstByte, body)
}
