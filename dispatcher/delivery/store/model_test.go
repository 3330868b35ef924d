package store

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
	"spendhook/events/layout"
	"spendhook/internal/partition"
	"spendhook/internal/queues"
)

// modelEvent is an event as the model has it.
type modelEvent struct {
	ref   events.Ref
	state events.State
	begun bool // being matched
	dead  bool
	of    map[uuid.UUID]*modelDelivery
}

type modelDelivery struct {
	delivery.Record

	text            string // as it was written
	waits, inFlight bool
}

// model is what a company's work should look like.
type model struct {
	h      *harness
	t      *rapid.T
	events []*modelEvent
	subs   []uuid.UUID
	last   *Write // the last one that was written
}

// TestRecordAgainstModel takes events through random steps: accepted, read,
// matched, attempted, replayed, held, cancelled, and written twice. States,
// counts, indexes, retry sets and marks are those of a plain model after each step.
func TestRecordAgainstModel(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	rapid.Check(t, func(rt *rapid.T) {
		h.client.FlushDB(t.Context()) // this test's own database
		h.read = "0"
		m := &model{h: h, t: rt, subs: []uuid.UUID{{1}, {2}, {3}}}
		rt.Repeat(map[string]func(*rapid.T){
			"accept": func(*rapid.T) { m.accept() },
			"begin":  func(*rapid.T) { m.begin() },
			"match":  func(*rapid.T) { m.match() },
			"end":    func(*rapid.T) { m.end() },
			"change": func(*rapid.T) { m.change() },
			"add":    func(*rapid.T) { m.add() },
			"repeat": func(*rapid.T) { m.repeat() },
			"stale":  func(*rapid.T) { m.stale() },
			"":       func(*rapid.T) { m.check() },
		})
	})
}

func (m *model) accept() {
	if len(m.events) == 6 {
		m.t.Skip("enough events")
	}
	ref := m.h.accept(m.t, fmt.Sprintf("e%d", len(m.events)))
	m.events = append(m.events, &modelEvent{ref: ref, state: events.Ready, of: map[uuid.UUID]*modelDelivery{}})
}

func (m *model) begin() {
	n := rapid.IntRange(1, 3).Draw(m.t, "how many")
	got := m.h.begin(m.t, n)
	for _, ref := range got.events {
		e := m.event(ref)
		if e.state != events.Ready || e.begun {
			m.t.Fatalf("%s was begun: it is %c, begun: %v", ref, e.state, e.begun)
		}
		e.begun = true
	}
	for _, ref := range got.deliveries {
		d := m.event(ref.Ref).of[ref.Subscriber]
		if d == nil || !d.waits || d.inFlight {
			m.t.Fatalf("%s was begun: %+v", ref, d)
		}
		d.inFlight = true
	}
	m.last = nil // what was begun may be of it
}

func (m *model) event(ref events.Ref) *modelEvent {
	for _, e := range m.events {
		if e.ref == ref {
			return e
		}
	}
	m.t.Fatalf("there is no %s", ref)
	return nil
}

// draw picks one element for which is returns true.
func draw[T any](t *rapid.T, all []T, is func(T) bool) T {
	var fit []T
	for _, one := range all {
		if is(one) {
			fit = append(fit, one)
		}
	}
	if len(fit) == 0 {
		t.Skip("nothing to choose from")
	}
	return rapid.SampledFrom(fit).Draw(t, "which")
}

// match records the outcomes of some or all subscribers of an event that was begun. Some
// may have a delivery already: their outcomes are not written.
func (m *model) match() {
	e := draw(m.t, m.events, func(e *modelEvent) bool { return e.begun })
	outcomes := []func(delivery.Record) delivery.Record{m.h.succeed, m.h.succeed, m.h.succeed, m.h.fail, m.h.gone, m.h.queue, m.h.requeue}
	if rapid.Bool().Draw(m.t, "all well") {
		outcomes = outcomes[:3]
	}
	w := Write{Event: e.ref, Matched: rapid.Bool().Draw(m.t, "matched")}
	for _, sub := range m.subs {
		if rapid.Bool().Draw(m.t, "to this one") {
			w.Changes = append(w.Changes, m.h.first(delivery.Ref{Ref: e.ref, Subscriber: sub}, rapid.SampledFrom(outcomes).Draw(m.t, "outcome")))
		}
	}
	w.Fanout = len(w.Changes)
	m.write(e, w)
}

type modelRef struct {
	e   *modelEvent
	sub uuid.UUID
	d   *modelDelivery
}

func (m *model) deliveries() []modelRef {
	var all []modelRef
	for _, e := range m.events {
		for _, sub := range m.subs {
			if d := e.of[sub]; d != nil {
				all = append(all, modelRef{e, sub, d})
			}
		}
	}
	return all
}

// end ends an attempt of a delivery that waited.
func (m *model) end() {
	r := draw(m.t, m.deliveries(), func(r modelRef) bool { return r.d.inFlight })
	outcome := rapid.SampledFrom([]func(delivery.Record) delivery.Record{m.h.succeed, m.h.fail, m.h.gone, m.h.queue, m.h.requeue, m.h.drop}).Draw(m.t, "outcome")
	base := r.d.Record
	c := m.h.change(delivery.Ref{Ref: r.e.ref, Subscriber: r.sub}, &base, outcome)
	c.InFlight = true
	m.write(r.e, Write{Event: r.e.ref, Changes: []Change{c}})
}

// change changes a delivery outside of any attempt.
func (m *model) change() {
	r := draw(m.t, m.deliveries(), func(modelRef) bool { return true })
	moves := []func(delivery.Record) delivery.Record{m.h.retry}
	if r.d.Status.Live() {
		moves = append(moves, m.h.requeue, m.h.drop)
	}
	base := r.d.Record
	c := m.h.change(delivery.Ref{Ref: r.e.ref, Subscriber: r.sub}, &base, rapid.SampledFrom(moves).Draw(m.t, "move"))
	c.Guarded = true
	m.write(r.e, Write{Event: r.e.ref, Changes: []Change{c}})
}

// add replays an event to a subscriber that had no delivery of it.
func (m *model) add() {
	e := draw(m.t, m.events, func(e *modelEvent) bool { return len(e.of) < len(m.subs) })
	sub := draw(m.t, m.subs, func(s uuid.UUID) bool { return e.of[s] == nil })
	c := m.h.first(delivery.Ref{Ref: e.ref, Subscriber: sub}, m.h.retry)
	c.Guarded = true
	m.write(e, Write{Event: e.ref, Changes: []Change{c}})
}

// repeat writes what was written last once more, as after a lost answer.
func (m *model) repeat() {
	if m.last == nil {
		m.t.Skip("nothing was written")
	}
	for i, f := range m.h.record(m.t, *m.last) {
		if f != nil {
			m.t.Fatalf("change %d of the last write is not recognised: %+v", i, f)
		}
	}
}

// stale writes a change of an older version.
func (m *model) stale() {
	r := draw(m.t, m.deliveries(), func(r modelRef) bool { return r.d.Version > 1 })
	base := r.d.Record
	base.Version = rapid.Int64Range(0, base.Version-1).Draw(m.t, "version")
	c := m.h.change(delivery.Ref{Ref: r.e.ref, Subscriber: r.sub}, &base, func(rec delivery.Record) delivery.Record {
		rec.Count += 100 // as nothing that was written
		return m.h.retry(rec)
	})
	if f := m.h.record(m.t, Write{Event: r.e.ref, Changes: []Change{c}})[0]; f == nil || f.Record.Version != r.d.Version {
		m.t.Fatalf("a change of version %d of %d is answered %+v", base.Version, r.d.Version, f)
	}
}

// write has Redis and the model make the same changes, and compares the answers.
func (m *model) write(e *modelEvent, w Write) {
	found := m.h.record(m.t, w)
	for i, c := range w.Changes {
		d := e.of[c.Ref.Subscriber]
		switch {
		case d != nil && d.text == c.text: // as good as written, by whomever
			if found[i] != nil {
				m.t.Fatalf("%s, written again, is answered %+v", c.Ref, found[i])
			}
			continue
		case d != nil && d.Version != c.Base.Version:
			if found[i] == nil || found[i].Record.Version != d.Version {
				m.t.Fatalf("%s has version %d, and %d was written: %+v", c.Ref, d.Version, c.Base.Version, found[i])
			}
			continue
		case d != nil && d.inFlight && c.Guarded:
			if found[i] == nil || !found[i].InFlight {
				m.t.Fatalf("%s is in flight: %+v", c.Ref, found[i])
			}
			continue
		case found[i] != nil:
			m.t.Fatalf("%s was not written: %+v", c.Ref, found[i])
		}
		next := &modelDelivery{Record: *c.Next, text: c.text}
		next.Version++
		next.waits = next.Status.Live() && next.Due > 0
		e.of[c.Ref.Subscriber] = next
		e.dead = e.dead || next.Status == delivery.StatusDead
	}
	if w.Matched {
		e.begun = false
	}
	if e.state != events.Ready || w.Matched {
		e.state = events.Settled
		for _, d := range e.of {
			if d.Status.Live() {
				e.state = events.Matched
			}
		}
	}
	m.last = nil
	if !slices.ContainsFunc(found, func(f *Found) bool { return f != nil }) {
		m.last = &w
	}
}

func (m *model) check() {
	ofCompany := 0
	for _, e := range m.events {
		if e.state != events.Settled {
			ofCompany++
		}
	}
	for _, e := range m.events {
		m.checkEvent(e, ofCompany)
	}
	m.checkIndexes()
}

func (m *model) checkEvent(e *modelEvent, ofCompany int) {
	s := m.h.standing(m.t, e.ref)
	live := 0
	for sub, d := range e.of {
		if d.Status.Live() {
			live++
		}
		if got := m.h.stored(m.t, delivery.Ref{Ref: e.ref, Subscriber: sub}); got.Version != d.Version || got.Status != d.Status || got.Due != d.Due || got.Reason != d.Reason || got.Count != d.Count {
			m.t.Fatalf("%s of %s is kept as %+v, want %+v", sub, e.ref, got, d.Record)
		}
	}
	if s.state != e.state || s.live != live || s.deliveries != len(e.of) || s.ofCompany != ofCompany || s.ofPartition != ofCompany {
		m.t.Fatalf("%s stands as %+v, want state %c, %d live of %d, %d events pending", e.ref, s, e.state, live, len(e.of), ofCompany)
	}
	expires := e.state == events.Settled
	if (s.eventFor > 0) != expires || (s.deliveriesFor > 0) != (expires && len(e.of) > 0) {
		m.t.Fatalf("%s is %c and has the time to live %v, its deliveries %v", e.ref, e.state, s.eventFor, s.deliveriesFor)
	}
	if long := s.eventFor > 20*day; expires && long != e.dead {
		m.t.Fatalf("%s has the time to live %v; one of its deliveries was dead: %v", e.ref, s.eventFor, e.dead)
	}
}

// checkIndexes compares the indexes, retry sets and marks of attempts under way.
func (m *model) checkIndexes() {
	all, live, dead := map[uuid.UUID][]string{}, map[uuid.UUID][]string{}, map[uuid.UUID][]string{}
	queued, inFlight := map[uuid.UUID][]string{}, map[uuid.UUID][]string{}
	var liveOfAll, deadOfAll, deadOfPartition []string
	add := func(to map[uuid.UUID][]string, r modelRef, is bool) {
		if is {
			to[r.sub] = append(to[r.sub], r.e.ref.ID)
		}
	}
	for _, r := range m.deliveries() {
		add(all, r, true)
		add(live, r, r.d.Status.Live())
		add(dead, r, r.d.Status == delivery.StatusDead)
		add(queued, r, r.d.waits)
		add(inFlight, r, r.d.inFlight)
		both := r.e.ref.ID + "/" + r.sub.String()
		if r.d.Status.Live() {
			liveOfAll = append(liveOfAll, both)
		}
		if r.d.Status == delivery.StatusDead {
			deadOfAll = append(deadOfAll, both)
			deadOfPartition = append(deadOfPartition, m.h.company.String()+"/"+both)
		}
	}
	c := m.h.company
	for _, sub := range m.subs {
		m.sameSet(layout.OfSubscriberKey(c, sub), all[sub])
		m.sameSet(indexKey(liveIndex, c, &sub), live[sub])
		m.sameSet(indexKey(deadIndex, c, &sub), dead[sub])
		m.sameSet(queues.RetrySetKey(c, sub), queued[sub])
		m.same("in flight", m.h.client.HKeys(m.t.Context(), queues.InFlightKey(c, sub)).Val(), inFlight[sub])
	}
	m.sameSet(indexKey(liveIndex, c, nil), liveOfAll)
	m.sameSet(indexKey(deadIndex, c, nil), deadOfAll)
	m.sameSet(partition.Key(c, "dead"), deadOfPartition)
}

func (m *model) sameSet(key string, want []string) {
	m.same(key, m.h.client.ZRange(m.t.Context(), key, 0, -1).Val(), want)
}

func (m *model) same(what string, got, want []string) {
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		m.t.Fatalf("%s: got %q, want %q", what, got, want)
	}
}

// Writes of all kinds in one pipeline have the same effect as each write alone.
func TestManyWritesAreAsEachAlone(t *testing.T) {
	t.Parallel()
	one, many := newHarness(t), newHarness(t)
	many.company, many.now = one.company, one.now
	var writes []Write
	for i := range 130 { // several calls of either script
		e := one.accepted(t, fmt.Sprint("e", i))
		many.accepted(t, e.ID)
		outcomes := []func(delivery.Record) delivery.Record{one.succeed, one.succeed, one.fail, one.gone, one.queue, one.requeue}
		w := Write{Event: e, Matched: i%7 != 0}
		for j, outcome := range outcomes[:i%len(outcomes)] {
			w.Changes = append(w.Changes, one.first(delivery.Ref{Ref: e, Subscriber: uuid.UUID{byte(j)}}, outcome))
		}
		w.Fanout = len(w.Changes)
		writes = append(writes, w)
	}
	for _, w := range writes {
		one.mustWrite(t, w)
	}
	recorded, _, err := many.Record(t.Context(), many.now, under(testReplica, writes))
	if len(found(t, recorded, err)) > 0 {
		t.Errorf("not written: %+v", recorded)
	}
	for _, w := range writes {
		got, want := many.standing(t, w.Event), one.standing(t, w.Event)
		for _, d := range []*time.Duration{&got.eventFor, &got.deliveriesFor, &want.eventFor, &want.deliveriesFor} {
			*d = d.Round(5 * time.Minute)
		}
		if got != want {
			t.Errorf("%s stands as\n%+v, want\n%+v", w.Event, got, want)
		}
		for _, c := range w.Changes {
			if got, want := many.stored(t, c.Ref), one.stored(t, c.Ref); !reflect.DeepEqual(got, want) {
				t.Errorf("%s is %+v, want %+v", c.Ref, got, want)
			}
		}
	}
}
