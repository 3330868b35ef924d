package publish

import (
	"time"
)

// Queued is how many events wait for a committer.
func (p *Publisher) Queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.shards {
		for _, b := range c.waiting {
			n += len(b.entries)
		}
	}
	return n
}

// Committers is how many shards have a committer.
func (p *Publisher) Committers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.shards)
}

// SetClock sets the clock of this process. Redis's clock remains that of acceptance.
func (p *Publisher) SetClock(now func() time.Time) { p.opts.Now, p.clock = now, nil }
