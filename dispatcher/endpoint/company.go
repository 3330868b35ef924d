package endpoint

import (
	"container/list"
	"iter"
	"slices"
	"time"

	"github.com/google/uuid"
)

// maxExceptions bounds the companies that Holding lists.
const maxExceptions = 4096

// company is the state of one company. It is dropped once the company holds no place and has
// no other state.
type company struct {
	id       uuid.UUID
	held     int           // its deliveries and outcomes in memory
	extra    int           // of these, outcomes without a place
	failing  bool          // its last attempt did not reach the endpoint
	skipped  *list.Element // in Admission.skipped; nil: the company is not in the list
	matching int           // events that are to be matched; they have places too
	all      []uuid.UUID   // its endpoints, of the last call of Busy
	spills   time.Time     // until then, no delivery waits in memory for its endpoint
}

// Busy notes the endpoints of a company, in any order, and reports whether no delivery that waits in memory for one of them
// can delay another: because there is one, or none can start a delivery now. Otherwise, and once one can start a delivery,
// those that wait long overflow while the company may start no more. Call it before Enter for each event.
func (a *Admission) Busy(id uuid.UUID, endpoints iter.Seq[uuid.UUID]) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.company(id) // Enter follows, and forgets it if it holds nothing
	c.all = slices.AppendSeq(c.all[:0], endpoints)
	return len(c.all) < 2 || !a.hasIdle(c)
}

// hasIdle reports whether one of a company's endpoints could start a delivery.
func (a *Admission) hasIdle(c *company) bool {
	return slices.ContainsFunc(c.all, func(id uuid.UUID) bool {
		e := a.endpoints[id]
		return e == nil || !a.busy(e)
	})
}

// overflowSlow has the waiting deliveries of slow endpoints of a company overflow, if another one could start a delivery.
func (a *Admission) overflowSlow(c *company) (overflowed []decided) {
	if a.stopped || len(c.all) < 2 || !a.hasIdle(c) {
		return nil
	}
	for _, id := range c.all {
		e := a.endpoints[id]
		switch {
		case e == nil || len(e.waiting) == 0:
		case a.hostFull(e.waiting[0]) && a.hostBusy(c, e.waiting[0]):
			overflowed = append(overflowed, a.overflowAll(c, e, decided{decision: OverflowHost}))
		case a.expectedWait(e) > maxWait:
			overflowed = append(overflowed, a.overflowAll(c, e, decided{decision: OverflowShare}))
		}
	}
	return overflowed
}

// spillTime is how long Spill holds.
const spillTime = 15 * time.Second

// Spill has the deliveries of a company that wait in memory for their endpoints overflow, for 15 seconds. So its events do
// not wait in the log until its endpoints are less busy, but are matched.
func (a *Admission) Spill(company uuid.UUID) {
	for _, w := range a.spill(company) {
		w.call()
	}
}

func (a *Admission) spill(id uuid.UUID) (overflowed []decided) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.companies[id]
	if c == nil || a.stopped { // nothing of it waits
		return nil
	}
	c.spills = a.o.Now().Add(spillTime)
	for _, endpoint := range c.all {
		if e := a.endpoints[endpoint]; e != nil {
			overflowed = append(overflowed, a.overflowAll(c, e, decided{decision: OverflowShare}))
		}
	}
	a.updateHolding(c)
	return overflowed
}

// Free returns how many more deliveries the company may start; 0 when it holds its share, and while its
// events are being matched. The share is two fifths of the sum of the free places and the company's own
// places. So more places stay free than the company holds, even after it has started a few too many.
func (a *Admission) Free(company uuid.UUID) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.freeFor(a.companies[company])
}

// Holding returns how many more deliveries each company that has places may start, and how many
// any other company may start. When only the last eighth of the places is left, shares also has
// the failing companies without places (0), up to 4,096 companies in all. Its time is linear in
// these companies.
func (a *Admission) Holding() (shares map[uuid.UUID]int, others int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	shares = make(map[uuid.UUID]int, len(a.holding))
	for id, c := range a.holding {
		shares[id] = a.freeFor(c)
	}
	others = a.freeFor(nil)
	if a.o.Places-a.held > a.reserve() {
		return shares, others
	}
	for id, c := range a.companies {
		if c.held == 0 && c.failing && len(shares) < maxExceptions {
			shares[id] = 0
		}
	}
	return shares, others
}

// freeFor is the free share of a company; nil: of one that holds nothing.
func (a *Admission) freeFor(c *company) int {
	if c == nil {
		c = &company{}
	}
	free := a.o.Places - a.held
	switch {
	case a.stopped || c.matching > 0 || c.held >= free:
		return 0
	case free > a.reserve():
		share := (free + c.held) * 2 / 5
		if c.held == 0 {
			share = max(share, 1)
		}
		return max(0, min(share-c.held, free-a.reserve()))
	case c.failing:
		return 0
	default:
		return 1
	}
}

// Skipped notes that work of the company was not started because of its share. It reports whether the
// company may start more at once. If not, a later Leave, EndMatch or Release returns the company, once.
// Of more than MaxEndpoints such companies that hold nothing, some are forgotten.
func (a *Admission) Skipped(company uuid.UUID) bool {
	worth, overflowed := a.skip(company)
	for _, w := range overflowed {
		w.call()
	}
	return worth
}

func (a *Admission) skip(company uuid.UUID) (worth bool, overflowed []decided) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.company(company)
	overflowed = a.overflowSlow(c)
	if worth = a.worthATurn(c); !worth && c.skipped == nil {
		c.skipped = a.skipped.PushBack(c)
	}
	a.updateHolding(c)
	return worth, overflowed
}

func (a *Admission) worthATurn(c *company) bool {
	return a.freeFor(c) >= max(1, min(minAgain, a.o.Places/reservedShare))
}

// nextAgain returns one company that was skipped and may start more. When memory is empty, it returns
// all of them: no later Leave or Release would return the others.
func (a *Admission) nextAgain() (again []uuid.UUID) {
	for at := a.skipped.Front(); at != nil && (len(again) == 0 || a.held == 0); at = a.skipped.Front() {
		c := at.Value.(*company)
		if !a.worthATurn(c) {
			a.skipped.MoveToBack(at)
			break
		}
		a.forgetSkipped(c)
		a.updateHolding(c)
		again = append(again, c.id)
	}
	return again
}

func (a *Admission) forgetSkipped(c *company) {
	if c.skipped != nil {
		a.skipped.Remove(c.skipped)
		c.skipped = nil
	}
}

// company finds or makes a company. updateHolding must follow.
func (a *Admission) company(id uuid.UUID) *company {
	c := a.companies[id]
	if c == nil {
		c = &company{id: id}
		a.companies[id] = c
	}
	return c
}

// updateHolding notes after a change whether a company holds something. It forgets a company without
// state, and beyond MaxEndpoints idle companies one of them.
func (a *Admission) updateHolding(c *company) {
	switch {
	case c.held > 0:
		a.holding[c.id] = c
		return
	case !c.failing && c.skipped == nil:
		a.forget(c)
	default:
		delete(a.holding, c.id)
	}
	if len(a.companies)-len(a.holding) > a.o.MaxEndpoints {
		for _, other := range a.companies {
			if other.held == 0 && other != c {
				a.forget(other)
				return
			}
		}
	}
}

func (a *Admission) forget(c *company) {
	a.forgetSkipped(c)
	delete(a.holding, c.id)
	delete(a.companies, c.id)
}
