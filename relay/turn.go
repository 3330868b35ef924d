package relay

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"spendhook/api/client"
)

// take takes what a stream may send now: nothing while the source waits, since the daemon asked for it. After such a
// wait one request of all streams finds out whether the daemon accepts again. next is when to try again unless the stream
// is woken before; zero: not before.
func (s *Sender) take(stream *Stream) (r request, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.pausedUntil.After(now) {
		return request{}, s.pausedUntil
	}
	stream.mu.Lock()
	defer stream.mu.Unlock()
	r.lines, r.records = stream.window.take(maxSent, now)
	asks := slices.ContainsFunc(r.records, func(r *Record) bool { return r.dead == "" })
	if asks && !s.pausedUntil.IsZero() {
		r.probe = true
		s.pausedUntil = now.Add(askTime) // or until its answer
	}
	return r, stream.window.next()
}

// heed has the source wait when the daemon asks for it. Only a probe ends the wait: any other request may have been sent
// before it. read is whether the answer has the result of an event. The caller holds s.mu.
func (s *Sender) heed(err error, probe, read bool) {
	refusal, refused := errors.AsType[*client.Error](err)
	switch {
	case refused && s.concerns(refusal):
		until := s.now().Add(min(max(refusal.RetryAfter, backoff(s.pauses)), mostPause))
		if probe || s.pausedUntil.IsZero() {
			s.pauses++
		}
		if probe || until.After(s.pausedUntil) {
			s.pausedUntil = until
		}
	case !probe:
	case refused && len(refusal.Results) > 0: // these events wait; others find out whether the daemon accepts
		s.pausedUntil = s.now()
		s.wake()
	case err == nil, read, refused && isOfDaemon(refusal):
		s.pausedUntil, s.pauses = time.Time{}, 0
		s.wake()
	default:
		s.pausedUntil = s.now().Add(backoff(s.pauses))
		s.pauses++
	}
}

// wake wakes all streams. The caller holds s.mu.
func (s *Sender) wake() {
	for stream := range s.streams {
		stream.wake()
	}
}

// isOfDaemon reports whether a refusal by 4xx is the daemon's own, after it has read the request.
func isOfDaemon(refusal *client.Error) bool {
	return refusal.Code != "HTTP_ERROR" && refusal.Status != http.StatusRequestTimeout && refusal.Status < http.StatusInternalServerError
}

// concerns reports whether a refusal that passes would meet any request of the source. One of all events of a request may
// be that of a company at its quota, and other companies go on; one of a single event may be for its size. The caller
// holds s.mu.
func (s *Sender) concerns(refusal *client.Error) bool {
	if n := len(refusal.Results); n > 0 && s.several || n == 1 && refusal.Code == "STORAGE_FULL" {
		return false
	}
	return refusal.RetryAfter > 0 || refusal.Status == http.StatusTooManyRequests || refusal.Status == http.StatusServiceUnavailable
}

// note notes the company of an event.
func (s *Sender) note(company *uuid.UUID) {
	if company == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.several = s.several || s.company != uuid.Nil && s.company != *company
	s.company = *company
}
