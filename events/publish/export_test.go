package publish

import (
	"time"

	"spendhook/events/layout"
)

// Queued is how many events wait for a committer.
func (p *Publisher) Queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.shards {
		c.mu.Lock()
		for _, b := range c.waiting {
			n += len(b.entries)
		}
		c.mu.Unlock()
	}
	return n
}

// SetClock makes the publisher use now as the real clock.
func (p *Publisher) SetClock(now func() time.Time) {
	p.opts.Now = now
	_, p.lead = layout.Clock(nil)
}
