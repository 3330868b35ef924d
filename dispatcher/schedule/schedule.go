// Package schedule decides whose turn it is: which companies read their log, which endpoints attempt deliveries, and
// when. It has what one replica keeps of the partitions that it owns. It uses neither Redis nor the network, and no
// clock of its own.
//
// Companies with work take turns by start-time fair queueing (Goyal et al. 1996): each turn costs what it starts, and
// the company with the lowest start comes next. So none waits behind another's backlog.
package schedule

import (
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Options configures a Schedule. All are required.
type Options struct {
	// MayStart returns how many attempts of waiting deliveries an endpoint may start now. When there are none because of a
	// time, it returns that time; else the time is zero, and Left follows once there may be some.
	MayStart func(company, endpoint uuid.UUID) (int, time.Time)
	// Learned sets what is known of an endpoint: unreachable attempts in a row, and for how long it is not to be
	// attempted.
	Learned func(company, endpoint uuid.UUID, fails int, wait time.Duration)
}

// Schedule has the companies of one shard. It is not safe for concurrent use.
type Schedule struct {
	o         Options
	companies map[uuid.UUID]*company
	turns     turns
	timers    timers
	virtual   float64           // start of the last turn
	dirty     map[*company]bool // with changes that Changes returns
	byPart    map[int]map[*company]bool
}

// New returns a Schedule without companies.
func New(o Options) *Schedule {
	return &Schedule{o: o, companies: make(map[uuid.UUID]*company), dirty: make(map[*company]bool), byPart: make(map[int]map[*company]bool)}
}

// company is what the owner keeps of one company.
type company struct {
	id        uuid.UUID
	partition int

	// The log. Each place is that of an event in the company's index.
	read   float64         // the last event that was read
	last   float64         // the last event that is known
	known  float64         // up to here, events were accepted before this replica owned the partition
	cursor float64         // all events up to here are matched
	stored float64         // the cursor that Redis has
	open   []open          // the events after the cursor that were read, in their order
	again  []string        // ids of events to be matched again
	begun  map[string]bool // those that are being matched again
	closed []string        // those that were matched again, until Changes returns them

	suspects int // so many more events that are read may have ended a former owner

	endpoints map[uuid.UUID]*endpoint
	ready     []*endpoint          // those that may have deliveries to start, the next first
	jobs      []uuid.UUID          // those that are due, the next first
	waits     map[uuid.UUID]*timer // jobs that are not due
	job       uuid.UUID            // the one that runs; zero: none
	rerun     bool                 // the job that runs is due again

	cost  float64 // average number of deliveries of an event
	taken int     // number of turns
	start float64 // virtual start time of the next turn
	index int     // in turns; -1: it has no turn
	turn  bool    // its turn is under way
	away  bool    // it has no turn before Again, or before the timer back
	back  timer
}

// open is an event that was read.
type open struct {
	place  float64
	number int64
	id     string
	done   bool // it is matched
	placed bool // its deliveries that must not overtake others are in their retry sets
}

// endpoint is a subscriber with deliveries in its retry set.
type endpoint struct {
	timer
	company  *company
	ready    bool // in company.ready
	full     bool // it waits until Left reports a free place
	held     bool // a delivery waits for an earlier event, or that of an ordered endpoint for an attempt
	fresh    bool // its state was not read yet
	asked    bool // the turn under way reads its state, which has not changed since
	ended    bool // an attempt has ended since the turn under way began
	inFlight int
	ordered  bool
	interval time.Duration // between two deliveries; 0: no rate
	burst    int
	due      time.Time // of the next delivery at the rate (the TAT of the generic cell rate algorithm, ITU-T I.371)
	moved    bool      // due has changed since Kept noted it
}

const (
	jobTurn      = 8  // in every so many turns of a company, a job precedes its events
	endpointsMax = 32 // endpoints of one turn
	// A full endpoint has its next turn once some places are free, or after fullWait: a turn for each place would cost
	// a call each.
	freedLeast = 4
	awayMost   = time.Second // after which a company that holds its share has a turn in any case
	fullWait   = 100 * time.Millisecond
)

// Load adds a company of a partition, or corrects what is known of its log: cursor and last are places in its log, as
// Redis has them; up to known, events may have deliveries already. cost is the average number of deliveries of its
// events. suspects: so many of its unmatched events may have ended a former owner.
func (s *Schedule) Load(partition int, id uuid.UUID, cursor, last, cost, known float64, suspects int) {
	c := s.companies[id]
	if c == nil {
		c = &company{
			id: id, partition: partition, index: -1, read: cursor, cursor: cursor, stored: cursor, cost: max(cost, 1), known: known,
			back: timer{index: -1}, begun: make(map[string]bool), endpoints: make(map[uuid.UUID]*endpoint), waits: make(map[uuid.UUID]*timer), suspects: suspects,
		}
		c.back.run = func() { c.away = false; s.offer(c) }
		s.companies[id] = c
		if s.byPart[partition] == nil {
			s.byPart[partition] = make(map[*company]bool)
		}
		s.byPart[partition][c] = true
	}
	c.last = max(c.last, last)
	s.offer(c)
}

// Has reports whether a company was loaded.
func (s *Schedule) Has(id uuid.UUID) bool { return s.companies[id] != nil }

// Drop forgets the companies of a partition.
func (s *Schedule) Drop(partition int) {
	for c := range s.byPart[partition] {
		if c.index >= 0 {
			heap.Remove(&s.turns, c.index)
		}
		for _, e := range c.endpoints {
			s.unset(&e.timer)
		}
		for _, t := range c.waits {
			s.unset(t)
		}
		s.unset(&c.back)
		delete(s.companies, c.id)
		delete(s.dirty, c)
	}
	delete(s.byPart, partition)
}

// offer gives a company a turn if it has work.
func (s *Schedule) offer(c *company) {
	if c.index >= 0 || c.turn || c.away || !c.hasWork() {
		return
	}
	c.start = max(c.start, s.virtual)
	heap.Push(&s.turns, c)
}

func (c *company) hasWork() bool {
	return c.hasMore() || c.hasJob()
}

func (c *company) hasJob() bool { return len(c.jobs) > 0 && c.job == uuid.Nil }

// Events notes that a company has events up to a place in its log.
func (s *Schedule) Events(id uuid.UUID, last float64) {
	if c := s.companies[id]; c != nil {
		c.last = max(c.last, last)
		s.offer(c)
	}
}

// Event is an event of a company's log.
type Event struct {
	Place  float64
	Number int64
	ID     string
}

// Begin notes that events were accepted, which follow the event at a place, and reports whether they may be matched at
// once, without a turn: the company has nothing else that waits, and no turn under way, which was asked for as if they
// were not there. cursor is as of Load, in case that the company is not loaded.
func (s *Schedule) Begin(partition int, id uuid.UUID, cursor, after, cost float64, events []Event) bool {
	last := events[len(events)-1].Place
	if s.companies[id] == nil {
		s.Load(partition, id, cursor, after, cost, 0, 0)
	}
	c := s.companies[id]
	if c.read != after || c.last > after || c.index >= 0 || c.turn || c.away || c.hasWork() {
		s.Events(id, last)
		return false
	}
	c.read, c.last = last, last
	for _, e := range events {
		c.open = append(c.open, open{place: e.Place, number: e.Number, id: e.ID})
	}
	c.start = max(c.start, s.virtual) + c.cost*float64(len(events))
	return true
}

// MatchAgain gives an event of a company a turn, which was matched before, or could not be.
func (s *Schedule) MatchAgain(id uuid.UUID, event string) {
	if c := s.companies[id]; c != nil && !slices.Contains(c.again, event) && !c.begun[event] {
		c.again = append(c.again, event)
		s.offer(c)
	}
}

// Requeue gives an event of a company another turn, whose matching was begun and could not be done.
func (s *Schedule) Requeue(id uuid.UUID, event string) {
	if c := s.companies[id]; c != nil {
		delete(c.begun, event)
		s.MatchAgain(id, event)
	}
}

// Elsewhere notes that an event of a turn is not begun, since a former owner is matching it.
func (s *Schedule) Elsewhere(id uuid.UUID, event string) {
	if c := s.companies[id]; c != nil {
		delete(c.begun, event)
	}
}

// Matched notes that an event is matched, with a number of deliveries, or is in the quarantine (0).
func (s *Schedule) Matched(id uuid.UUID, event string, fanout int) {
	c := s.companies[id]
	if c == nil {
		return
	}
	before := c.unplaced()
	c.cost += (max(float64(fanout), 1) - c.cost) / 8
	if c.begun[event] {
		delete(c.begun, event)
		c.closed = append(c.closed, event)
	}
	if i := slices.IndexFunc(c.open, func(o open) bool { return o.id == event }); i >= 0 {
		c.open[i].done = true
	}
	n := 0
	for n < len(c.open) && c.open[n].done {
		c.cursor = c.open[n].place
		n++
	}
	if c.open = c.open[n:]; len(c.open) == 0 {
		c.open, c.cursor = nil, c.read
	}
	s.dirty[c] = true
	s.serveHeld(c, before)
}

// Placed notes that the deliveries of an event that must not overtake others are in their retry sets. Later ones need
// not wait until its other deliveries have an outcome.
func (s *Schedule) Placed(id uuid.UUID, event string) {
	if c := s.companies[id]; c != nil {
		if i := slices.IndexFunc(c.open, func(o open) bool { return o.id == event }); i >= 0 {
			before := c.unplaced()
			c.open[i].placed = true
			s.serveHeld(c, before)
		}
	}
}

// serveHeld serves the endpoints whose deliveries wait for an event, unless the first that is not placed is as before.
func (s *Schedule) serveHeld(c *company, before int64) {
	if c.unplaced() == before {
		return
	}
	for _, e := range c.endpoints {
		if e.held && (e.inFlight == 0 || !e.ordered) {
			s.serve(e)
		}
	}
}

// Endpoint notes that an endpoint may have something to start after a time.
func (s *Schedule) Endpoint(company, id uuid.UUID, now time.Time, wait time.Duration) {
	c := s.companies[company]
	if c == nil {
		return
	}
	s.later(s.endpointOf(c, id), now, wait)
}

// Changed notes that something else than this replica has changed an endpoint: its state is read again.
func (s *Schedule) Changed(company, id uuid.UUID) {
	if c := s.companies[company]; c != nil {
		e := s.endpointOf(c, id)
		e.fresh, e.asked = true, false
		s.serve(e)
	}
}

func (s *Schedule) endpointOf(c *company, id uuid.UUID) *endpoint {
	e := c.endpoints[id]
	if e == nil {
		e = &endpoint{timer: timer{id: id, index: -1}, company: c, fresh: true}
		e.run = func() { s.serve(e) }
		c.endpoints[id] = e
	}
	return e
}

// later serves an endpoint after a time, unless it is to be served earlier.
func (s *Schedule) later(e *endpoint, now time.Time, wait time.Duration) {
	at := now.Add(wait)
	switch {
	case e.ready:
	case wait <= 0:
		s.serve(e)
	case e.index < 0 || at.Before(e.at):
		s.set(&e.timer, at)
	}
}

// serve gives an endpoint a place in the turns of its company.
func (s *Schedule) serve(e *endpoint) {
	s.unset(&e.timer)
	e.full, e.held = false, false
	if !e.ready {
		e.ready = true
		e.company.ready = append(e.company.ready, e)
		s.offer(e.company)
	}
}

// Backlogged lists the endpoints of a company whose new deliveries must go behind others that are due.
func (s *Schedule) Backlogged(company uuid.UUID) (ids []uuid.UUID) {
	c := s.companies[company]
	if c == nil {
		return nil
	}
	for id, e := range c.endpoints {
		if e.ready || e.full || e.held || e.fresh {
			ids = append(ids, id)
		}
	}
	return ids
}

// Ended notes that a delivery of a retry set, which was in flight, has an outcome. wait: when the delivery is due
// again; negative: never.
func (s *Schedule) Ended(company, id uuid.UUID, now time.Time, wait time.Duration) {
	c := s.companies[company]
	if c == nil || c.endpoints[id] == nil {
		return
	}
	e := c.endpoints[id]
	e.inFlight, e.ended = max(0, e.inFlight-1), true
	if wait >= 0 {
		s.later(e, now, wait)
	}
	s.Left(company, id, now)
	s.forget(e)
}

// forget forgets an endpoint that nothing waits for.
func (s *Schedule) forget(e *endpoint) {
	if e.inFlight == 0 && !e.ready && !e.full && !e.held && !e.moved && e.index < 0 && !e.company.turn {
		delete(e.company.endpoints, e.id)
		s.dirty[e.company] = true // perhaps nothing of it is left
	}
}

// Left notes that an attempt at an endpoint has ended.
func (s *Schedule) Left(company, id uuid.UUID, now time.Time) {
	c := s.companies[company]
	if c == nil || c.endpoints[id] == nil {
		return
	}
	e := c.endpoints[id]
	switch n, _ := s.o.MayStart(company, id); {
	case e.held && e.inFlight == 0:
		s.serve(e)
	case !e.full:
	case n >= freedLeast || e.inFlight == 0 && n > 0:
		s.serve(e)
	default:
		s.later(e, now, fullWait)
	}
}

// Job notes that a job of a company is due after a time.
func (s *Schedule) Job(company, id uuid.UUID, now time.Time, wait time.Duration) {
	c := s.companies[company]
	switch {
	case c == nil || slices.Contains(c.jobs, id):
		return
	case c.job == id:
		c.rerun = true
		return
	}
	if t := c.waits[id]; t != nil {
		if !now.Add(wait).Before(t.at) {
			return
		}
		s.unset(t)
		delete(c.waits, id)
	}
	if wait <= 0 {
		c.jobs = append(c.jobs, id)
		s.offer(c)
		return
	}
	t := &timer{id: id, index: -1}
	t.run = func() {
		delete(c.waits, id)
		c.jobs = append(c.jobs, id)
		s.offer(c)
	}
	c.waits[id] = t
	s.set(t, now.Add(wait))
}

// EndJob notes that a step of a job has ended. wait: until its next step; negative: the job has ended.
func (s *Schedule) EndJob(company, id uuid.UUID, now time.Time, wait time.Duration) {
	c := s.companies[company]
	if c == nil || c.job != id {
		return
	}
	if c.rerun {
		wait = 0
	}
	c.job, c.rerun = uuid.Nil, false
	if wait >= 0 {
		s.Job(company, id, now, wait)
	}
	s.offer(c)
}

// Again gives a company a turn that was left out because it held its share.
func (s *Schedule) Again(id uuid.UUID) {
	if c := s.companies[id]; c != nil {
		s.unset(&c.back)
		c.away = false
		s.offer(c)
	}
}

// Turn is what a company may start now. Served must follow.
type Turn struct {
	Company   uuid.UUID
	Partition int
	After     float64  // the place in the log after which to read
	Last      float64  // the place of the last event that is known
	Events    int      // how many events to read
	KnownTo   float64  // events up to this place may have deliveries
	Unplaced  int64    // the lowest number of an event that was read and is neither matched nor placed; 0: none may be; -1: all are
	Again     []string // ids of events that are to be matched again
	Endpoints []Share  // of waiting deliveries
	Job       uuid.UUID
}

// Share is how many deliveries of an endpoint may start; -1: its state is not known yet, one may start unless it has a
// rate.
type Share struct {
	Endpoint uuid.UUID
	Most     int
}

// Next returns the turns of the companies that come next, and the companies that were left out because they hold
// their share; Again must follow for each of these. A turn starts about `quantum` deliveries, more if no other company
// has work, and all turns together about `budget`. shares has the deliveries that some companies may start, others that
// of each other company.
func (s *Schedule) Next(now time.Time, budget, quantum int, shares map[uuid.UUID]int, others int) (turns []Turn, away []uuid.UUID) {
	alone := len(s.turns) == 1
	left := float64(budget)
	for len(s.turns) > 0 && left >= 1 {
		c := s.turns[0]
		share, listed := shares[c.id]
		if !listed {
			share = others
		}
		want := min(float64(share), left)
		if !alone {
			want = min(want, float64(quantum))
		}
		heap.Pop(&s.turns)
		if want < 1 && !c.hasJob() { // a job needs no place
			s.leaveOut(c, now.Add(awayMost))
			away = append(away, c.id)
			continue
		}
		s.virtual = max(s.virtual, c.start)
		if t := s.turn(c, now, want); !t.empty() {
			c.turn = true
			turns = append(turns, t)
			left -= t.cost(c)
		} else {
			s.offer(c)
		}
	}
	return turns, away
}

func (t *Turn) empty() bool {
	return t.Events+len(t.Again)+len(t.Endpoints) == 0 && t.Job == uuid.Nil
}

// cost is the number of deliveries that a turn may start.
func (t *Turn) cost(c *company) float64 {
	n := c.cost * float64(t.Events+len(t.Again))
	for _, e := range t.Endpoints {
		n += float64(max(e.Most, 1))
	}
	return max(n, 1)
}

// turn chooses what a company starts. Events and waiting deliveries come first in turn.
func (s *Schedule) turn(c *company, now time.Time, want float64) Turn {
	t := Turn{Company: c.id, Partition: c.partition, After: c.read, Last: c.last, KnownTo: c.known, Unplaced: c.unplaced()}
	c.taken++
	if c.hasJob() && (c.taken%jobTurn == 0 || !c.hasMore() || want < 1) {
		c.job, t.Job = c.jobs[0], c.jobs[0]
		c.jobs = c.jobs[1:]
	}
	if c.taken%2 == 0 {
		want -= s.chooseEndpoints(c, now, want, &t)
		c.chooseEvents(want, &t)
	} else {
		want -= c.chooseEvents(want, &t)
		s.chooseEndpoints(c, now, want, &t)
	}
	return t
}

// hasMore reports whether a company has events or deliveries to start.
func (c *company) hasMore() bool { return len(c.again) > 0 || c.last > c.read || len(c.ready) > 0 }

// unplaced is Turn.Unplaced.
func (c *company) unplaced() int64 {
	if c.read < c.known {
		return 0
	}
	for _, o := range c.open {
		if !o.done && !o.placed {
			return o.number
		}
	}
	return -1
}

func (c *company) chooseEvents(want float64, t *Turn) (used float64) {
	n := int(want / c.cost)
	if n < 1 && want >= 1 {
		n = 1
	}
	m := min(n, len(c.again))
	t.Again = slices.Clone(c.again[:m])
	c.again = c.again[m:]
	for _, id := range t.Again {
		c.begun[id] = true
	}
	if n -= m; c.last > c.read {
		t.Events = max(n, 0)
	}
	return c.cost * float64(m+t.Events)
}

func (s *Schedule) chooseEndpoints(c *company, now time.Time, want float64, t *Turn) (used float64) {
	var rest []*endpoint
	for i, e := range c.ready {
		if len(t.Endpoints) == endpointsMax || want-used < 1 {
			rest = append(rest, c.ready[i:]...)
			break
		}
		e.ready = false
		n, at := s.o.MayStart(c.id, e.id)
		rate, again := e.rate(now)
		most := min(n, rate, int(want-used))
		switch {
		case e.fresh && n < 1: // its state is read
			most = 0
		case e.fresh:
			most = -1
		case e.ordered && e.inFlight > 0:
			e.held = true
			continue
		case n < 1 && !at.IsZero():
			s.later(e, now, at.Sub(now))
			continue
		case n < 1:
			e.full = true
			s.set(&e.timer, now.Add(10*fullWait)) // in case that nothing leaves
			continue
		case rate < 1:
			s.later(e, now, again.Sub(now))
			continue
		case e.ordered:
			most = 1
		}
		e.asked, e.ended = true, false
		t.Endpoints = append(t.Endpoints, Share{e.id, most})
		used++
		used += float64(max(0, most-1))
	}
	c.ready = rest
	return used
}

// rate returns how many deliveries the endpoint's rate allows now, and when it allows one.
func (e *endpoint) rate(now time.Time) (int, time.Time) {
	if e.interval <= 0 {
		return math.MaxInt32, now
	}
	due := e.due
	if due.Before(now) {
		due = now
	}
	n := math.Floor(float64(now.Sub(due))/float64(e.interval) + float64(e.burst) + 1e-6)
	return max(0, int(n)), due.Add(-time.Duration(e.burst-1) * e.interval)
}

// Answer is what was found for a Turn.
type Answer struct {
	Last      float64 // place of the company's last event
	Events    []Event // those that were read, after Turn.After
	Endpoints []State // in the order of Turn.Endpoints
	Complete  bool    // Events has all that the turn asked for, or all that there are
}

// State is what was found for an endpoint.
type State struct {
	Started  int           // deliveries that are in flight now
	Next     time.Duration // until the next service; 0: more is due; negative: nothing is known to wait
	Fails    int           // unreachable attempts in a row
	Wait     time.Duration // for which it is not to be attempted
	Interval time.Duration // of its rate; 0: none
	Burst    int
	Due      time.Duration // until the next delivery at the rate; may be negative
	Ordered  bool
	Held     bool // what is due waits for an attempt or an earlier event, since it must not overtake
}

// Served notes what was found for a turn, and gives the company its next turn. It returns how many of the events are
// suspects, which may have ended a former owner, and which of those of the log are being matched already.
func (s *Schedule) Served(t Turn, a Answer, now time.Time) (suspects int, begun []string) {
	c := s.companies[t.Company]
	if c == nil || c.partition != t.Partition {
		return 0, nil
	}
	c.turn = false
	cost := c.cost * float64(len(a.Events)+len(t.Again))
	for _, e := range a.Events {
		c.open = append(c.open, open{place: e.Place, number: e.Number, id: e.ID})
		c.read = max(c.read, e.Place)
		if i := slices.Index(c.again, e.ID); i >= 0 { // it is matched now
			c.again = slices.Delete(c.again, i, i+1)
		}
		if c.begun[e.ID] {
			begun = append(begun, e.ID)
		}
	}
	if c.last = max(c.last, a.Last); a.Complete && len(a.Events) < t.Events {
		c.read = max(c.read, a.Last)
		if c.last == t.Last {
			c.last = c.read // Redis has no more: it has forgotten events, in a failover
		}
	}
	if len(c.open) == 0 && c.cursor != c.read {
		c.cursor = c.read
		s.dirty[c] = true
	}
	for i, share := range t.Endpoints {
		if i < len(a.Endpoints) {
			s.served(s.endpointOf(c, share.Endpoint), a.Endpoints[i], now)
			cost += float64(a.Endpoints[i].Started)
		}
	}
	if t.Unplaced >= 0 {
		s.serveHeld(c, t.Unplaced)
	}
	suspects = min(c.suspects, len(a.Events))
	c.suspects -= suspects
	c.start = max(c.start, s.virtual) + max(cost, 1)
	s.offer(c)
	return suspects, begun
}

func (s *Schedule) served(e *endpoint, found State, now time.Time) {
	if e.fresh && e.asked {
		e.fresh = false
		if found.Interval > 0 { // Redis has what was kept last, and the settings may have changed
			due := max(e.due.Sub(now), found.Due)
			e.due = now.Add(min(due, time.Duration(found.Burst)*found.Interval))
		}
		s.o.Learned(e.company.id, e.id, found.Fails, found.Wait)
	}
	e.inFlight += found.Started
	e.interval, e.burst, e.ordered = found.Interval, found.Burst, found.Ordered
	if e.interval > 0 && found.Started > 0 {
		if e.due.Before(now) {
			e.due = now
		}
		e.due = e.due.Add(time.Duration(found.Started) * e.interval)
		e.moved = true
		s.dirty[e.company] = true
	}
	e.held = found.Held || e.ordered && found.Next < 0
	switch {
	case e.held && e.ended && e.inFlight == 0:
		s.serve(e) // perhaps it was held by what has ended
	case found.Next >= 0:
		s.later(e, now, found.Next)
	default:
		s.forget(e)
	}
}

// Failed gives the work of a turn back whose answer was lost. Deliveries that the turn may have marked as in flight
// are found again.
func (s *Schedule) Failed(t Turn, now time.Time, wait time.Duration) {
	c := s.companies[t.Company]
	if c == nil || c.partition != t.Partition {
		return
	}
	c.turn = false
	for _, id := range t.Again {
		delete(c.begun, id)
		c.again = append(c.again, id)
	}
	for _, share := range t.Endpoints {
		s.later(s.endpointOf(c, share.Endpoint), now, wait)
	}
	if t.Job != uuid.Nil {
		c.job = uuid.Nil
		s.Job(c.id, t.Job, now, wait)
	}
	s.leaveOut(c, now.Add(wait))
}

// leaveOut gives a company no turn until a time, or until Again.
func (s *Schedule) leaveOut(c *company, until time.Time) {
	c.away = true
	if c.back.index < 0 {
		s.set(&c.back, until)
	}
}

// Fire runs what is due by time, and returns when the next is due; zero: nothing is.
func (s *Schedule) Fire(now time.Time) time.Time {
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		t := s.timers[0]
		s.unset(t)
		t.run()
	}
	if len(s.timers) == 0 {
		return time.Time{}
	}
	return s.timers[0].at
}

// Waiting reports whether any company has a turn.
func (s *Schedule) Waiting() bool { return len(s.turns) > 0 }

// Change is what Redis is to keep of a company, for the next owner.
type Change struct {
	Company   uuid.UUID
	Partition int
	Cursor    float64
	Cost      float64
	Matched   []string // ids of MatchAgain that are matched
	Rates     []Rate
}

// Rate is when the next delivery of an endpoint is due at its rate.
type Rate struct {
	Endpoint uuid.UUID
	Due      time.Time
}

// Changes returns what has changed since the last call.
func (s *Schedule) Changes() (all []Change) {
	for c := range s.dirty {
		change := Change{Company: c.id, Partition: c.partition, Cursor: c.cursor, Cost: c.cost, Matched: c.closed}
		c.closed = nil
		for _, e := range c.endpoints {
			if e.moved {
				change.Rates = append(change.Rates, Rate{e.id, e.due})
			}
		}
		all = append(all, change)
	}
	clear(s.dirty)
	return all
}

// Unwritten notes that a change could not be written: a later call of Changes returns it again.
func (s *Schedule) Unwritten(change Change) {
	c := s.companies[change.Company]
	if c == nil || c.partition != change.Partition {
		return
	}
	c.closed = append(c.closed, change.Matched...)
	s.dirty[c] = true
}

// Begun lists the events of a partition that are being matched, and counts the waiting deliveries that are in flight.
func (s *Schedule) Begun(partition int) (events []Begun, inFlight int) {
	for c := range s.byPart[partition] {
		for _, o := range c.open {
			if !o.done && !slices.Contains(c.again, o.id) {
				events = append(events, Begun{c.id, o.id})
			}
		}
		for id := range c.begun {
			events = append(events, Begun{c.id, id})
		}
		for _, e := range c.endpoints {
			inFlight += e.inFlight
		}
	}
	return events, inFlight
}

// Kept notes that a change was written. A company of which nothing is left to know is forgotten: all its events are
// matched.
func (s *Schedule) Kept(change Change) {
	c := s.companies[change.Company]
	if c == nil || c.partition != change.Partition {
		return
	}
	for _, r := range change.Rates {
		if e := c.endpoints[r.Endpoint]; e != nil && e.due.Equal(r.Due) {
			e.moved = false
		}
	}
	for _, e := range c.endpoints {
		s.forget(e)
	}
	idle := len(c.open)+len(c.again)+len(c.begun)+len(c.closed)+len(c.endpoints)+len(c.jobs)+len(c.waits) == 0
	if idle && c.read == c.last && c.cursor == c.read && c.cursor == change.Cursor && c.job == uuid.Nil && c.index < 0 && !c.turn && !c.away && !s.dirty[c] {
		delete(s.companies, c.id)
		delete(s.byPart[c.partition], c)
	}
}

// Begun is an event that is being matched.
type Begun struct {
	Company uuid.UUID
	ID      string
}
