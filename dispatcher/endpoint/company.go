package endpoint

import (
	"container/list"

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
}

// Free returns how many more deliveries the company may claim; 0 when it holds its share, and while its
// events are being matched. The share is two fifths of the sum of the free places and the company's own
// places. So more places stay free than the company holds, even after it has claimed a few too many.
func (a *Admission) Free(company uuid.UUID) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.freeFor(a.companies[company])
}

// Holding returns how many more deliveries each company that has places may claim, and how many
// any other company may claim. When only the last eighth of the places is left, shares also has
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

// Skipped notes that work of the company was not claimed because of its share. It reports whether the
// company may claim again at once. If not, a later Leave, EndMatch or Release returns the company, once.
// Of more than MaxEndpoints such companies that hold nothing, some are forgotten.
func (a *Admission) Skipped(company uuid.UUID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.company(company)
	worth := a.worthClaiming(c)
	if !worth && c.skipped == nil {
		c.skipped = a.skipped.PushBack(c)
	}
	a.updateHolding(c)
	return worth
}

func (a *Admission) worthClaiming(c *company) bool {
	return a.freeFor(c) >= max(1, min(minClaim, a.o.Places/reservedShare))
}

// nowClaimable returns one company that was skipped and may claim again. When memory is empty, it returns
// all of them: no later Leave or Release would return the others.
func (a *Admission) nowClaimable() (again []uuid.UUID) {
	for at := a.skipped.Front(); at != nil && (len(again) == 0 || a.held == 0); at = a.skipped.Front() {
		c := at.Value.(*company)
		if !a.worthClaiming(c) {
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
