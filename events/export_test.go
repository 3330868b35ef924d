package events

// Queued is how many Accept calls wait for a committer.
func (p *Publisher) Queued() int { return len(p.queue) }
