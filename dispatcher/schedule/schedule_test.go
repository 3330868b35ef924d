package schedule

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
)

func id(n int) uuid.UUID { return uuid.UUID{15: byte(n)} }

// start is the time at which tests begin.
var start = time.Unix(1_000_000, 0)

// fixture is a Schedule with its own clock, and lets any number of attempts start unless a test says otherwise.
type fixture struct {
	*Schedule

	t       *testing.T
	now     time.Time
	limits  map[uuid.UUID]int       // of endpoints; without an entry: 64
	closed  map[uuid.UUID]time.Time // endpoints that may not be attempted before a time
	learned []string
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, now: start, limits: make(map[uuid.UUID]int), closed: make(map[uuid.UUID]time.Time)}
	f.Schedule = New(Options{
		MayStart: func(_, endpoint uuid.UUID) (int, time.Time) {
			if at, ok := f.closed[endpoint]; ok && f.now.Before(at) {
				return 0, at
			}
			if n, ok := f.limits[endpoint]; ok {
				return n, time.Time{}
			}
			return 64, time.Time{}
		},
		Learned: func(_, endpoint uuid.UUID, fails int, wait time.Duration) {
			f.learned = append(f.learned, strconv.Itoa(int(endpoint[15]))+" "+strconv.Itoa(fails)+" "+wait.String())
		},
	})
	return f
}

// events are the events with places from..to.
func events(from, to int) (all []Event) {
	for n := from; n <= to; n++ {
		all = append(all, Event{Place: float64(n), Number: int64(n), ID: "e" + strconv.Itoa(n)})
	}
	return all
}

// next is the next turns of at most budget deliveries, while every company may start 400.
func (f *fixture) next(budget int) []Turn {
	f.t.Helper()
	f.Fire(f.now)
	turns, _ := f.Next(f.now, budget, 50, nil, 400)
	return turns
}

// one is the only next turn.
func (f *fixture) one() Turn {
	f.t.Helper()
	turns := f.next(400)
	if len(turns) != 1 {
		f.t.Fatalf("%d turns, want one: %+v", len(turns), turns)
	}
	return turns[0]
}

func (f *fixture) none() {
	f.t.Helper()
	if turns := f.next(400); len(turns) > 0 {
		f.t.Fatalf("turns %+v, want none", turns)
	}
}

// changes are those since the last call, of the only company.
func (f *fixture) cursor() float64 {
	f.t.Helper()
	all := f.Changes()
	if len(all) != 1 {
		f.t.Fatalf("%d changes, want one", len(all))
	}
	return all[0].Cursor
}

// An event that was accepted here is matched at once, and the cursor follows the events in their order.
func TestCursorFollowsTheFirstEventThatIsNotMatched(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if !f.Begin(7, id(1), 0, 0, 1, events(1, 3)) || !f.Begin(7, id(1), 3, 3, 1, events(4, 4)) {
		t.Fatal("the events wait for a turn")
	}
	f.none()
	f.Matched(id(1), "e2", 1)
	if c := f.cursor(); c != 0 {
		t.Errorf("cursor %v before the first event is matched", c)
	}
	f.Matched(id(1), "e1", 1)
	if c := f.cursor(); c != 2 {
		t.Errorf("cursor %v, want 2", c)
	}
	f.Matched(id(1), "e4", 1)
	f.Matched(id(1), "e3", 1)
	if c := f.cursor(); c != 4 {
		t.Errorf("cursor %v, want 4", c)
	}
}

// A company that is not loaded may have events that nobody has matched.
func TestBeginBehindOthers(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if f.Begin(7, id(1), 2, 3, 1, events(4, 4)) {
		t.Error("the event is matched, and the one before it is forgotten")
	}
	if turn := f.one(); turn.After != 2 {
		t.Errorf("turn %+v", turn)
	}
}

// Events whose predecessors were not read wait for a turn, in which they are read in their order.
func TestEventsAreReadInOrder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 2, 5, 1, 5, 0)
	if f.Begin(7, id(1), 5, 5, 1, events(6, 6)) {
		t.Error("an event is matched before earlier ones are read")
	}
	turn := f.one()
	if turn.After != 2 || turn.Events < 4 || turn.KnownTo != 5 || turn.Partition != 7 || turn.Unplaced != 0 {
		t.Errorf("turn %+v", turn)
	}
	f.Served(turn, Answer{Last: 6, Events: events(3, 6), Complete: true}, f.now)
	f.none()
	if !f.Begin(7, id(1), 6, 6, 1, events(7, 7)) {
		t.Error("all earlier events are read")
	}
}

// A turn whose answer was lost is repeated.
func TestFailedTurnIsRepeated(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 3, 3, 1, 0, 0)
	f.MatchAgain(id(1), "old")
	f.Endpoint(id(1), id(9), f.now, 0)
	for range 2 {
		turn := f.one()
		if !slices.Equal(turn.Again, []string{"old"}) || len(turn.Endpoints) != 1 {
			t.Errorf("turn %+v", turn)
		}
		f.Failed(turn, f.now, time.Second)
		f.none()
		f.now = f.now.Add(time.Second)
	}
	f.Served(f.one(), Answer{Last: 3, Endpoints: []State{{Next: -1}}, Complete: true}, f.now)
	f.Job(id(1), id(8), f.now, 0)
	for range 2 {
		turn := f.one()
		if turn.Job != id(8) {
			t.Errorf("turn %+v", turn)
		}
		f.Failed(turn, f.now, time.Second)
		f.none()
		f.now = f.now.Add(time.Second)
	}
}

// Only an event that was matched again leaves the set of those that are to be.
func TestEventIsMatchedAgain(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 3, 3, 1, 3, 0)
	f.MatchAgain(id(1), "e1")
	f.MatchAgain(id(1), "e1")
	turn := f.one()
	f.Served(turn, Answer{Last: 3, Complete: true}, f.now)
	f.MatchAgain(id(1), "e1") // it is under way
	f.none()
	f.Matched(id(1), "e1", 2)
	change := f.Changes()[0]
	if !slices.Equal(change.Matched, []string{"e1"}) || change.Cursor != 3 {
		t.Errorf("change %+v", change)
	}
	f.Unwritten(change)
	if again := f.Changes()[0]; !slices.Equal(again.Matched, []string{"e1"}) {
		t.Errorf("change %+v is not repeated", again)
	}
}

// An event that could not be matched has another turn, each time.
func TestRequeuedEvent(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Begin(7, id(1), 0, 0, 1, events(1, 1))
	for range 3 {
		f.Requeue(id(1), "e1")
		turn := f.one()
		if !slices.Equal(turn.Again, []string{"e1"}) {
			t.Fatalf("turn %+v", turn)
		}
		f.Served(turn, Answer{Last: 1, Complete: true}, f.now)
		f.none()
	}
	f.Matched(id(1), "e1", 1)
	if c := f.cursor(); c != 1 {
		t.Errorf("cursor %v", c)
	}
}

// Companies take turns: one with a backlog does not delay another.
func TestCompaniesTakeTurns(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 0, 100_000, 1, 0, 0)
	started, read := map[uuid.UUID]int{}, map[uuid.UUID]int{}
	for range 20 {
		f.Load(8, id(2), 0, float64(read[id(2)]+10), 1, 0, 0)
		for _, turn := range f.next(100) {
			n := min(turn.Events, 10)
			if turn.Company == id(1) {
				n = turn.Events
			}
			from := read[turn.Company]
			read[turn.Company] += n
			started[turn.Company] += n
			f.Served(turn, Answer{Last: float64(max(read[turn.Company], 10)), Events: events(from+1, from+n)}, f.now)
			for _, e := range events(from+1, from+n) {
				f.Matched(turn.Company, e.ID, 1)
			}
		}
	}
	if started[id(2)] != 200 {
		t.Errorf("the company without a backlog started %d of 200", started[id(2)])
	}
	if started[id(1)] < 500 {
		t.Errorf("the one with a backlog started %d", started[id(1)])
	}
}

// A company that holds its share has no turn before Again, or before a second has passed.
func TestShare(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 0, 10, 1, 0, 0)
	for _, again := range []func(){func() { f.Again(id(1)) }, func() { f.now = f.now.Add(time.Second) }} {
		turns, away := f.Next(f.now, 400, 50, map[uuid.UUID]int{id(1): 0}, 100)
		if len(turns) != 0 || !slices.Equal(away, []uuid.UUID{id(1)}) {
			t.Fatalf("turns %v, away %v", turns, away)
		}
		f.Load(7, id(1), 0, 20, 1, 0, 0)
		f.none()
		again()
		f.Failed(f.one(), f.now, 0)
		f.Fire(f.now)
	}
}

// state is what a turn found of an endpoint.
func (f *fixture) serve(turn Turn, s State) {
	f.t.Helper()
	f.Served(turn, Answer{Endpoints: []State{s}, Complete: true}, f.now)
}

func (f *fixture) wantMost(want int) Turn {
	f.t.Helper()
	turn := f.one()
	if len(turn.Endpoints) != 1 || turn.Endpoints[0].Most != want {
		f.t.Fatalf("turn %+v, want %d deliveries", turn, want)
	}
	return turn
}

// endpoint has one company with one endpoint whose state was read.
func (f *fixture) endpoint(s State) {
	f.t.Helper()
	f.Load(7, id(1), 0, 0, 1, 0, 0)
	f.Endpoint(id(1), id(9), f.now, 0)
	f.serve(f.wantMost(-1), s)
}

// An endpoint starts as many deliveries as it may. A full one is served again once some places are free.
func TestMayStart(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.limits[id(9)] = 10
	f.endpoint(State{Started: 1, Next: 0})
	f.serve(f.wantMost(10), State{Started: 10, Next: 0})
	f.limits[id(9)] = 0
	f.none()
	f.limits[id(9)] = 1
	f.Ended(id(1), id(9), f.now, -1)
	f.none()
	f.limits[id(9)] = freedLeast
	f.Ended(id(1), id(9), f.now, -1)
	f.wantMost(freedLeast)
}

// A full endpoint whose places become free one by one is served after a moment.
func TestFullEndpointIsServedAfterAMoment(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: 0})
	f.limits[id(9)] = 0
	f.none()
	f.limits[id(9)] = 1
	f.Left(id(1), id(9), f.now)
	f.Ended(id(1), id(9), f.now, -1)
	f.now = f.now.Add(fullWait)
	f.wantMost(1)
}

// An endpoint that may not be attempted before a time has its turn then.
func TestClosedEndpoint(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Next: 0, Fails: 12, Wait: time.Minute})
	if !slices.Equal(f.learned, []string{"9 12 1m0s"}) {
		t.Errorf("learned %v", f.learned)
	}
	f.closed[id(9)] = f.now.Add(time.Minute)
	f.none()
	f.Changed(id(1), id(9)) // its URL
	f.limits[id(9)] = 0
	f.serve(f.wantMost(0), State{Next: 0})
	delete(f.limits, id(9))
	if len(f.learned) != 2 || f.learned[1] != "9 0 0s" {
		t.Errorf("learned %v", f.learned)
	}
	f.none()
	f.now = f.now.Add(time.Minute)
	f.wantMost(64)
}

// An endpoint that is changed while a turn reads it is read again: the answer may be older than the change.
func TestEndpointThatIsChangedDuringATurn(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Next: 0})
	turn := f.one()
	f.Changed(id(1), id(9)) // its URL
	f.serve(turn, State{Next: 0, Fails: 12, Wait: time.Hour})
	f.serve(f.one(), State{Next: 0})
	if !slices.Equal(f.learned, []string{"9 0 0s", "9 0 0s"}) {
		t.Errorf("learned %v", f.learned)
	}
	f.wantMost(64)
}

// A rate allows its burst, and then one delivery in each interval.
func TestRate(t *testing.T) {
	t.Parallel()
	f := setup(t)
	rate := State{Next: 0, Interval: time.Second, Burst: 3}
	f.endpoint(rate)
	rate.Started = 3
	f.serve(f.wantMost(3), rate)
	f.none()
	if due := f.Changes()[0].Rates[0].Due; !due.Equal(f.now.Add(3 * time.Second)) {
		t.Errorf("the next is due at %v", due)
	}
	f.now = f.now.Add(time.Second)
	f.wantMost(1)
}

// The rate of a former owner holds on.
func TestRateOfAFormerOwner(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Next: 0, Interval: time.Second, Burst: 1, Due: 5 * time.Second})
	f.none()
	f.now = f.now.Add(5 * time.Second)
	f.wantMost(1)
}

// When the settings of an endpoint are read again, what was started meanwhile counts. No wait is longer than the rate asks
// for.
func TestRateIsReadAgain(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: 0, Interval: time.Hour, Burst: 1})
	f.none()
	f.Changed(id(1), id(9))
	f.serve(f.one(), State{Next: 0, Interval: time.Hour, Burst: 1})
	f.none()
	f.Changed(id(1), id(9))
	f.serve(f.one(), State{Next: 0, Interval: time.Second, Burst: 1, Due: time.Hour})
	f.none()
	f.now = f.now.Add(time.Second)
	f.wantMost(1)
}

// An ordered endpoint has one delivery in flight. The next waits for it, and for earlier events to be matched.
func TestOrder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: -1, Ordered: true})
	f.Endpoint(id(1), id(9), f.now, 0)
	f.none()
	f.Begin(7, id(1), 0, 0, 1, events(1, 1))
	f.Ended(id(1), id(9), f.now, -1)
	turn := f.wantMost(1)
	if turn.Unplaced != 1 {
		t.Errorf("turn %+v", turn)
	}
	f.serve(turn, State{Next: -1, Ordered: true}) // the first one is of a later event
	f.none()
	f.Matched(id(1), "e1", 1)
	if turn := f.wantMost(1); turn.Unplaced != -1 {
		t.Errorf("turn %+v", turn)
	}
}

// An endpoint is served again when the attempt that its order waits for has ended while its turn was under way: nothing
// else would serve it.
func TestOrderAfterAChange(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: -1, Ordered: true})
	f.Changed(id(1), id(9)) // so it is read although an attempt is under way
	turn := f.one()
	f.Ended(id(1), id(9), f.now, -1)
	f.serve(turn, State{Next: -1, Ordered: true})
	turn = f.wantMost(1)
	f.serve(turn, State{Next: -1, Ordered: true}) // nothing has ended meanwhile
	f.none()
}

// What waits for an attempt is served when that has ended, also while something else of the endpoint is due later: what was
// there before the subscriber was ordered.
func TestOrderBesideWhatIsDueLater(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: -1})
	f.Changed(id(1), id(9))
	f.serve(f.one(), State{Next: time.Hour, Ordered: true, Held: true})
	f.none()
	f.Ended(id(1), id(9), f.now, -1)
	f.wantMost(1)
}

// An endpoint is served again when the event that its delivery waits for was matched while its turn was under way.
func TestMatchedDuringATurn(t *testing.T) {
	t.Parallel()
	for _, found := range []State{{Next: -1, Ordered: true}, {Next: -1, Held: true}, {Next: time.Hour, Held: true}} {
		f := setup(t)
		f.endpoint(State{Next: -1, Ordered: found.Ordered, Held: found.Held})
		f.Begin(7, id(1), 0, 0, 1, events(1, 1))
		f.Endpoint(id(1), id(9), f.now, 0)
		turn := f.one()
		f.Matched(id(1), "e1", 1)
		f.serve(turn, found)
		if turn := f.one(); len(turn.Endpoints) != 1 || turn.Unplaced != -1 {
			t.Errorf("turn %+v", turn)
		}
	}
}

// An order waits until the earlier event's deliveries are in their retry sets, and not for its other deliveries.
func TestPlaced(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Next: -1, Held: true})
	f.Begin(7, id(1), 0, 0, 1, events(1, 2))
	f.Endpoint(id(1), id(9), f.now, 0)
	f.serve(f.one(), State{Next: -1, Held: true})
	f.Placed(id(1), "e2")
	f.none()
	f.Placed(id(1), "e1")
	if turn := f.one(); len(turn.Endpoints) != 1 || turn.Unplaced != -1 {
		t.Errorf("turn %+v", turn)
	}
}

// A delivery that must not overtake an earlier event waits for it alone: others of its endpoint are in flight.
func TestOrderByKey(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: time.Hour})
	f.Begin(7, id(1), 0, 0, 1, events(1, 1))
	f.Endpoint(id(1), id(9), f.now, 0)
	f.serve(f.one(), State{Started: 1, Next: time.Hour, Held: true})
	f.none()
	f.Matched(id(1), "e1", 1)
	if turn := f.one(); len(turn.Endpoints) != 1 || turn.Unplaced != -1 {
		t.Errorf("turn %+v", turn)
	}
}

// An event that is accepted while a turn of an ordered endpoint is under way is not begun: the turn was asked for as if no
// event were open, and would begin a later one once that is matched.
func TestNothingIsBegunWhileATurnIsUnderWay(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 0, 0, 1, 0, 0)
	f.Endpoint(id(1), id(101), f.now, 0)
	turn := f.one()
	if turn.Unplaced != -1 {
		t.Fatalf("unmatched from %d on", turn.Unplaced)
	}
	if f.Begin(7, id(1), 0, 0, 1, events(1, 2)) {
		t.Error("events were begun")
	}
	f.Served(turn, Answer{Last: 2, Endpoints: []State{{Next: -1, Ordered: true}}, Complete: true}, f.now)
	turn = f.one()
	f.Served(turn, Answer{Last: 2, Events: events(1, 2), Complete: true}, f.now)
	if f.Endpoint(id(1), id(101), f.now, 0); f.one().Unplaced != 1 {
		t.Error("the events are not open")
	}
}

// New deliveries of an endpoint go behind those that are due, and only behind these.
func TestBacklogged(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Next: time.Minute})
	if got := f.Backlogged(id(1)); len(got) > 0 {
		t.Errorf("nothing is due: %v", got)
	}
	f.now = f.now.Add(time.Minute)
	f.Fire(f.now)
	if got := f.Backlogged(id(1)); !slices.Equal(got, []uuid.UUID{id(9)}) {
		t.Errorf("backlogged %v", got)
	}
}

// One job of a company runs at a time, again after a time, and with a backlog in every eighth turn.
func TestJobs(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 0, 1_000_000, 1, 0, 0)
	f.Job(id(1), id(8), f.now, 0)
	f.Job(id(1), id(6), f.now, 0)
	turns, read := 0, 0
	step := func() uuid.UUID {
		turn := f.one()
		turns++
		f.Served(turn, Answer{Last: 1_000_000, Events: events(read+1, read+turn.Events)}, f.now)
		for _, e := range events(read+1, read+turn.Events) {
			f.Matched(id(1), e.ID, 1)
		}
		read += turn.Events
		return turn.Job
	}
	for step() != id(8) {
	}
	if turns > jobTurn {
		t.Errorf("the job waits for %d turns", turns)
	}
	for range 20 {
		if job := step(); job != uuid.Nil {
			t.Fatalf("job %v beside another", job)
		}
	}
	f.EndJob(id(1), id(8), f.now, time.Minute)
	for step() != id(6) {
	}
	f.EndJob(id(1), id(6), f.now, -1)
	for range 20 {
		if job := step(); job != uuid.Nil {
			t.Fatalf("job %v before its time", job)
		}
	}
	f.now = f.now.Add(time.Minute)
	for step() != id(8) {
	}
}

// A company that holds its share runs its jobs: they may be what frees its places.
func TestAJobNeedsNoPlace(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 0, 10, 1, 0, 0)
	f.Job(id(1), id(8), f.now, 0)
	full := map[uuid.UUID]int{id(1): 0}
	turns, away := f.Next(f.now, 100, 50, full, 100)
	if len(turns) != 1 || turns[0].Job != id(8) || turns[0].Events != 0 || len(away) != 0 {
		t.Fatalf("%+v, left out: %v", turns, away)
	}
	f.Served(turns[0], Answer{Last: 10}, f.now)
	if turns, away = f.Next(f.now, 100, 50, full, 100); len(turns) != 0 || !slices.Equal(away, []uuid.UUID{id(1)}) {
		t.Fatalf("while the job runs: %+v, left out: %v", turns, away)
	}
	f.Again(id(1))
	if turn := f.one(); turn.Events < 10 {
		t.Errorf("%+v", turn)
	}
}

// A company of which nothing is left to know is forgotten, and a partition that has another owner.
func TestForgotten(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Begin(7, id(1), 0, 0, 1, events(1, 1))
	f.Matched(id(1), "e1", 1)
	f.Kept(f.Changes()[0])
	if f.Has(id(1)) {
		t.Error("the idle company is kept")
	}
	f.Begin(7, id(1), 1, 1, 1, events(2, 2))
	f.Matched(id(1), "e2", 1)
	change := f.Changes()[0]
	f.Begin(7, id(1), 2, 2, 1, events(3, 3))
	if f.Kept(change); !f.Has(id(1)) {
		t.Error("a company with an event is forgotten")
	}
	f.Endpoint(id(1), id(9), f.now, time.Hour)
	f.Job(id(1), id(8), f.now, time.Hour)
	f.Load(7, id(2), 0, 5, 1, 0, 0)
	f.Drop(7)
	f.now = f.now.Add(2 * time.Hour)
	f.none()
	if f.Has(id(1)) || f.Has(id(2)) || len(f.Changes()) > 0 {
		t.Error("companies of a dropped partition are kept")
	}
}

// The next owner learns what is being matched.
func TestBegun(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.endpoint(State{Started: 1, Next: -1})
	f.Begin(7, id(1), 0, 0, 1, events(1, 2))
	f.Matched(id(1), "e1", 1)
	if events, deliveries := f.Begun(7); !slices.Equal(events, []Begun{{id(1), "e2"}}) || deliveries != 1 {
		t.Errorf("begun %v, %d", events, deliveries)
	}
}

// As many events as a lost owner may have had in memory are suspects.
func TestSuspects(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(7, id(1), 0, 100, 1, 100, 60)
	turn := f.one()
	if n, _ := f.Served(turn, Answer{Last: 100, Events: events(1, 50)}, f.now); n != 50 {
		t.Errorf("%d suspects", n)
	}
	if n, _ := f.Served(f.one(), Answer{Last: 100, Events: events(51, 100), Complete: true}, f.now); n != 10 {
		t.Errorf("%d suspects", n)
	}
}

// An event that a former owner is matching is not begun: not when the log is read, and once it is to be matched again, only
// once.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(1, id(1), 0, 2, 1, 0, 0)
	turn := f.one()
	f.MatchAgain(id(1), "e1") // its former owner has stopped while the log is read
	f.Served(turn, Answer{Last: 2, Events: events(1, 2), Complete: true}, f.now)
	f.none()

	f.MatchAgain(id(1), "old")
	if turn = f.one(); !slices.Equal(turn.Again, []string{"old"}) {
		t.Fatalf("the next turn is %+v", turn)
	}
	f.Served(turn, Answer{Last: 2, Complete: true}, f.now)
	f.Elsewhere(id(1), "old")
	f.MatchAgain(id(1), "old")
	if events, _ := f.Begun(1); len(events) != 2 { // those of the log: the other one waits for its turn
		t.Errorf("begun: %v", events)
	}
	f.MatchAgain(id(1), "e2")
	if events, _ := f.Begun(1); len(events) != 1 {
		t.Errorf("begun: %v", events)
	}
	if turn = f.one(); !slices.Equal(turn.Again, []string{"old", "e2"}) {
		t.Errorf("the next turn is %+v", turn)
	}
}

// A company whose turn is under way gets no other turn, whatever happens meanwhile. An event that is matched again already
// is not begun a second time when its turn in the log comes.
func TestOneTurnAtATime(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Load(1, id(1), 0, 1, 1, 0, 0)
	f.MatchAgain(id(1), "e2")
	turn := f.one()
	f.Events(id(1), 3)
	f.Endpoint(id(1), id(9), f.now, 0)
	f.none()
	_, begun := f.Served(turn, Answer{Last: 3, Events: events(1, 2)}, f.now)
	if !slices.Equal(begun, []string{"e2"}) {
		t.Errorf("begun already: %v", begun)
	}
	if turn := f.one(); turn.After != 2 {
		t.Errorf("the next turn is %+v", turn)
	}
	f.Matched(id(1), "e1", 1)
	f.Matched(id(1), "e2", 1)
	if changes := f.Changes(); len(changes) != 1 || changes[0].Cursor != 2 {
		t.Errorf("to be kept: %+v", changes)
	}
}
