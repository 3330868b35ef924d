package publish

import (
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// refusedFor is how long a company counts as refused after its last event was.
	refusedFor = time.Minute
	// maxRefused bounds the companies that are counted.
	maxRefused = 10_000
)

// refusals has the companies whose events were refused at their own share, and when last.
type refusals struct {
	mu   sync.Mutex
	last map[uuid.UUID]time.Time
}

// note notes a result. A refusal because Redis is full for everybody does not count.
func (r *refusals) note(company uuid.UUID, result Result, now time.Time) {
	if !errors.Is(result.Err, ErrBacklogFull) && (!errors.Is(result.Err, ErrStorageFull) || errors.Is(result.Err, errMemoryFull)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = make(map[uuid.UUID]time.Time)
	}
	if _, known := r.last[company]; known || len(r.last) < maxRefused {
		r.last[company] = now
	}
}

func (r *refusals) count(now time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.last, func(_ uuid.UUID, at time.Time) bool { return now.Sub(at) > refusedFor })
	return len(r.last)
}

// Refused returns the number of companies of which this process refused an event within a minute because
// the company is at its own share: ErrBacklogFull, or ErrStorageFull while others may still store events.
func (p *Publisher) Refused() int { return p.refused.count(p.opts.Now()) }
