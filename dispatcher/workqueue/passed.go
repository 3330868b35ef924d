package workqueue

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	maxPassed = 1 << 16          // companies that are remembered
	passedFor = 10 * time.Minute // for so long
)

// passed remembers when claims last passed by a company because it held its share of
// this replica's memory: its receivers hold up its work. Safe for concurrent use.
type passed struct {
	mu sync.RWMutex
	at map[uuid.UUID]time.Time
}

func (p *passed) note(companies []uuid.UUID) {
	if len(companies) == 0 {
		return
	}
	now := time.Now() //nolint:forbidigo // for metrics
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == nil {
		p.at = make(map[uuid.UUID]time.Time)
	}
	for _, c := range companies {
		if _, known := p.at[c]; known || len(p.at) < maxPassed {
			p.at[c] = now
		}
	}
}

// since reports whether a company was passed by at the time or later.
func (p *passed) since(company uuid.UUID, at time.Time) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	last, ok := p.at[company]
	return ok && !last.Before(at)
}

// forget forgets the companies that were not passed by for long.
func (p *passed) forget() {
	old := time.Now().Add(-passedFor) //nolint:forbidigo // for metrics
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, at := range p.at {
		if at.Before(old) {
			delete(p.at, c)
		}
	}
}

// PassedSince reports whether work of a company was left where it is since its
// deliveries held the company's share of this replica's memory, at the time or later.
// Passings are remembered for ten minutes.
func (q *Queue) PassedSince(company uuid.UUID, at time.Time) bool { return q.passed.since(company, at) }
