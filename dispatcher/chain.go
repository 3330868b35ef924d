package dispatcher

import (
	"sync"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"spendhook/subscribers"
)

// chained is of how many companies, and of how many subscribers, chains knows the last event.
const chained = 1 << 17

// chains knows which event each subscriber matched before the one that is being matched. A receiver that has both
// lacks none in between. It knows this in memory only, for runs of events that this replica has matched one after the
// other without a gap. Otherwise it does not say: the receiver then reads the feed.
type chains struct {
	mu          sync.Mutex
	runs        uint64                         // begun so far
	companies   *simplelru.LRU[uuid.UUID, run] // by company
	subscribers *simplelru.LRU[uuid.UUID, link]
}

// run is events of a company that were matched one after the other.
type run struct {
	id   uint64
	last int64 // number of the latest event
}

// link is the last event that a revision of a subscriber matched in a run.
type link struct {
	run      uint64
	revision string
	last     int64
}

func newChains() *chains {
	companies, _ := simplelru.NewLRU[uuid.UUID, run](chained, nil) // fails only for a size < 1
	links, _ := simplelru.NewLRU[uuid.UUID, link](chained, nil)
	return &chains{companies: companies, subscribers: links}
}

// next returns the number of the event before this one for each of the subscribers that match it; 0: it is not known.
func (c *chains) next(company uuid.UUID, number int64, matching []*subscribers.Subscriber) []int64 {
	previous := make([]int64, len(matching))
	c.mu.Lock()
	defer c.mu.Unlock()
	current, ok := c.companies.Get(company)
	if !ok || number != current.last+1 {
		c.runs++
		current.id = c.runs
	}
	current.last = number
	c.companies.Add(company, current)
	for i, sub := range matching {
		if l, ok := c.subscribers.Get(sub.UUID); ok && l.run == current.id && l.revision == sub.Revision {
			previous[i] = l.last
		}
		c.subscribers.Add(sub.UUID, link{run: current.id, revision: sub.Revision, last: number})
	}
	return previous
}
