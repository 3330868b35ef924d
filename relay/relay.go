// Package relay carries the records of a broker or of a table to Spendhook. A record becomes an event with an id that
// does not depend on the relay, so it may be sent again after any fault; the source forgets it only when the daemon has
// accepted it, or when it was written to the place for dead records.
//
// A Source reads records and gives them to a Stream, which sends them and tells the source how each ended. A Sender
// has what the streams of one source share.
package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"spendhook/api/client"
	"spendhook/internal/clock"
	"spendhook/internal/pause"
)

const (
	// again is the pause before a source is opened again after a fault. After ErrTooOld it is longer by tooOldPause: only
	// a person can help.
	again       = 5 * time.Second
	tooOldPause = time.Minute
	// measured is how often lag and age are measured.
	measured = 15 * time.Second
)

// Source reads the records of a broker or a table.
type Source interface {
	// Run reads until ctx ends, and then returns nil; or until a fault, which it returns. It returns when its streams
	// have ended. It may be called again afterwards.
	Run(ctx context.Context, to *Sender) error
	// Behind is the number of records that the source still has, by partition; the name "" stands for a source
	// without partitions. It may be called during Run.
	Behind(ctx context.Context) (map[string]int64, error)
}

// Emitter sends events. The results are in the order of the events, as those of a client.Emitter. It is used
// concurrently.
type Emitter interface {
	SendAll(ctx context.Context, events []client.EventInput) ([]client.EventItemResult, error)
}

// Mapper makes the event of a record, and its key. An error says why the record can never be an event. It is used
// concurrently.
type Mapper interface {
	Event(ctx context.Context, r *Record) (event client.EventInput, key string, err error)
}

// Options are what a Sender needs. Only Now is optional.
type Options struct {
	Name    string // of the source, in logs and metrics
	Emitter Emitter
	Mapper  Mapper
	Log     *slog.Logger
	Metrics *Metrics
	Now     func() time.Time
}

// Sender sends the records of one source. Its methods are safe for concurrent use.
type Sender struct {
	opts    Options
	emitter Emitter
	now     func() time.Time

	bytes atomic.Int64 // of the records of all streams

	mu      sync.Mutex // guards all below
	streams map[*Stream]bool
	refusal string // of the last request, by kindOf; "": it was not refused
	state   state
	works   bool // a record has had an outcome since the state changed
	silent  bool
	held    time.Time // since when a part of the source cannot be read; zero: all can be

	pausedUntil time.Time // nothing is sent before, since the daemon asked for it; zero: it did not
	pauses      int       // that the daemon asked for, in a row
	company     uuid.UUID // of the latest event
	several     bool      // there are events of several companies
}

// New returns a Sender.
func New(o Options) *Sender {
	s := &Sender{opts: o, emitter: o.Emitter, now: clock.Or(o.Now), streams: make(map[*Stream]bool)}
	o.Metrics.source(o.Name)
	return s
}

// Serve runs a source until ctx ends, and opens it again after each fault.
func (s *Sender) Serve(ctx context.Context, source Source) {
	var measuring sync.WaitGroup
	defer measuring.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	measuring.Go(func() { s.measure(ctx, source) })
	_ = pause.Until(ctx, again, func() error {
		return source.Run(ctx, s)
	}, func(err error) {
		s.Down(ctx, err)
		if errors.Is(err, ErrTooOld) {
			pause.For(ctx, tooOldPause)
		}
	})
}

// Down says that the source has failed, until Active. A source that goes on after a fault without being opened again
// calls it itself.
func (s *Sender) Down(ctx context.Context, err error) {
	s.setState(closed)
	s.opts.Log.LogAttrs(ctx, slog.LevelError, "a source failed and is opened again",
		slog.String("source", s.opts.Name), slog.String("exception.message", err.Error()))
}

// Failed reports whether the source cannot be read, because of a fault or since it was not opened yet.
func (s *Sender) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == closed || s.silent
}

// Stream returns an empty stream. settle is called with records that have an outcome, all of them accepted or all dead, by
// one goroutine at a time; records whose settle failed are sent again after the next start.
func (s *Sender) Stream(settle func(context.Context, []Outcome) error) *Stream {
	stream := &Stream{sender: s, settle: settle, woken: make(chan struct{}, 1), window: newWindow()}
	s.mu.Lock()
	s.streams[stream] = true
	s.mu.Unlock()
	return stream
}

func (s *Sender) remove(stream *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
	stream.mu.Lock()
	defer stream.mu.Unlock()
	stream.ended = true
	for l := range stream.window.lines {
		for _, r := range l.records {
			s.bytes.Add(-r.size())
		}
	}
}

// Active says that the source is open, and whether this relay reads it or waits while another one does.
func (s *Sender) Active(reads bool) {
	switch {
	case reads && s.setState(reading):
		s.opts.Log.Info("this relay reads the source", "source", s.opts.Name)
	case !reads && s.setState(waiting):
		s.opts.Log.Info("this relay does not read the source, another one may", "source", s.opts.Name)
	}
}

// state is that of a source.
type state int

const (
	closed  state = iota // not opened yet, or not after a fault
	waiting              // open, while another relay reads it
	reading
)

// setState reports whether the state was another one.
func (s *Sender) setState(to state) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.state != to
	s.state, s.silent = to, false
	s.works = s.works && !changed
	s.show()
	return changed
}

// Hold says whether a part of the source cannot be read, while the others are. Its records count as the oldest ones from
// then on.
func (s *Sender) Hold(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !on:
		s.held = time.Time{}
	case s.held.IsZero():
		s.held = s.now()
	}
}

// setSilent says whether the source does not answer, although it is open: its client may wait for it.
func (s *Sender) setSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
	s.show()
}

// show sets the gauges of the state. The caller holds s.mu.
func (s *Sender) show() {
	set := func(gauge *prometheus.GaugeVec, on bool) {
		value := 0.0
		if on {
			value = 1
		}
		gauge.WithLabelValues(s.opts.Name).Set(value)
	}
	set(s.opts.Metrics.up, s.state != closed && !s.silent)
	set(s.opts.Metrics.active, s.state == reading)
}

// prepare makes the event of a record.
func (s *Sender) prepare(ctx context.Context, r *Record) {
	if r.since = s.now(); !r.Time.IsZero() && r.Time.Before(r.since) {
		r.since = r.Time
	}
	event, key, err := s.opts.Mapper.Event(ctx, r)
	if err != nil {
		r.dead = err.Error()
		return
	}
	r.event, r.Key = event, key
	s.note(event.CompanyUUID)
}

// count counts outcomes. It logs dead records, and the first outcome.
func (s *Sender) count(ctx context.Context, outcomes []Outcome) {
	s.mu.Lock()
	first := !s.works
	s.works = true
	s.mu.Unlock()
	if first {
		s.opts.Log.LogAttrs(ctx, slog.LevelInfo, "the first records are settled", slog.String("source", s.opts.Name), slog.Int("records", len(outcomes)))
	}
	m := s.opts.Metrics.records.MustCurryWith(prometheus.Labels{"source": s.opts.Name})
	for _, o := range outcomes {
		switch {
		case o.Dead != "":
			m.WithLabelValues("dead").Inc()
			s.opts.Log.LogAttrs(ctx, slog.LevelWarn, "a record is dead",
				slog.String("source", s.opts.Name), slog.Int64("position", o.Position), slog.String("event_id", o.event.ID), slog.String("reason", o.Dead))
		case o.duplicate:
			m.WithLabelValues("duplicate").Inc()
		default:
			m.WithLabelValues("accepted").Inc()
		}
	}
}

// answered notes the answer to a request, which may be a probe, and logs when requests begin to be refused, when for
// another reason, and when they cease to be.
func (s *Sender) answered(ctx context.Context, err error, probe, read bool) {
	kind := kindOf(err)
	if err != nil {
		s.opts.Metrics.refusals.WithLabelValues(s.opts.Name).Inc()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heed(err, probe, read)
	if kind == s.refusal {
		return
	}
	s.refusal = kind
	if err == nil {
		s.opts.Log.LogAttrs(ctx, slog.LevelInfo, "the daemon accepts events again", slog.String("source", s.opts.Name))
		return
	}
	s.opts.Log.LogAttrs(ctx, slog.LevelWarn, "the daemon does not accept events, which are sent again",
		slog.String("source", s.opts.Name), slog.String("exception.message", err.Error()))
}

// kindOf tells refusals apart, also when the text of an error differs each time, as the number of a port; "": there is
// none.
func kindOf(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*itemError](err); ok {
		return e.Code
	}
	return "no answer"
}

// measure sets the gauges of lag and age until ctx ends.
func (s *Sender) measure(ctx context.Context, source Source) {
	for {
		asking, cancel := context.WithTimeout(ctx, measured)
		behind, err := source.Behind(asking)
		cancel()
		s.setSilent(err != nil && ctx.Err() == nil)
		if err == nil {
			s.opts.Metrics.setBehind(s.opts.Name, behind)
		}
		if oldest, known := s.oldest(); known {
			s.opts.Metrics.setOldest(s.opts.Name, oldest)
		}
		if !pause.For(ctx, measured) {
			return
		}
	}
}

// oldest is the time of the oldest record without an outcome; zero: there is none. It is not known while the source is
// not open.
func (s *Sender) oldest() (first time.Time, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = s.held
	for stream := range s.streams {
		stream.mu.Lock()
		if t := stream.window.oldest(); first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
		stream.mu.Unlock()
	}
	return first, s.state != closed
}
