package events

import "time"

// Queued is how many events wait for a committer.
func (p *Publisher) Queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.shards {
		c.mu.Lock()
		n += c.queued
		c.mu.Unlock()
	}
	return n
}

// SetClock has the store take its time from now, as if that were the real clock.
func (s *Store) SetClock(now func() time.Time) { s.now, s.lead = now, maxLead }

// The bounds of Arrivals.
const (
	MaxWaiting        = maxWaiting
	MaxCompanyWaiting = maxCompanyWaiting
)

// Waiting is how many wait.
func (a *Arrivals) Waiting() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting
}

// CompaniesKey is companiesKey, for tests.
var CompaniesKey = companiesKey
