package events

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// maxBatchBytes stops gathering before one pipeline holds up Redis.
	maxBatchBytes = 4 << 20
	// commitTimeout and enqueueTimeout bound how long a committer is held by a
	// Redis that does not answer; callers give up by their own contexts.
	commitTimeout  = 2 * time.Second
	enqueueTimeout = time.Second
)

// unit is the valid events of one Accept call.
type unit struct {
	entries   []*entry
	at        []int // where each entry's answer goes in the results
	bytes     int
	done      chan struct{} // closed when the entries are answered
	abandoned atomic.Bool   // nobody waits any more
}

func newUnit(size int) *unit {
	return &unit{entries: make([]*entry, 0, size), at: make([]int, 0, size), done: make(chan struct{})}
}

func (u *unit) add(e *entry, at int) {
	u.entries, u.at = append(u.entries, e), append(u.at, at)
	u.bytes += len(e.Body)
}

// err is not nil when Redis failed for any of the entries. Once done is closed.
func (u *unit) err() error {
	for _, e := range u.entries {
		if errors.Is(e.err, ErrUnavailable) {
			return e.err
		}
	}
	return nil
}

// answer fills in the results of the entries. Once done is closed.
func (u *unit) answer(results []Result) {
	for i, e := range u.entries {
		results[u.at[i]].Status, results[u.at[i]].Err = e.status, e.err
	}
}

// commitAll is a committer: it ends when the queue is closed and empty.
func (p *Publisher) commitAll() {
	for u := range p.queue {
		p.commit(p.gather(u))
	}
}

// gather adds to first what is queued already, up to a bound; it waits for
// nothing.
func (p *Publisher) gather(first *unit) []*unit {
	units := []*unit{first}
	count, bytes := len(first.entries), first.bytes
	for count < p.opts.MaxBatch && bytes < maxBatchBytes {
		select {
		case u, open := <-p.queue:
			if !open {
				return units
			}
			units = append(units, u)
			count, bytes = count+len(u.entries), bytes+u.bytes
		default:
			return units
		}
	}
	return units
}

// commit writes the entries of units, answers, and hands the new ones to the
// queue. No answer waits for the queue: the pending dispatch was written with the
// event, and what the queue does not get the sweeper finds.
func (p *Publisher) commit(units []*unit) {
	var entries []*entry
	for _, u := range units {
		if !u.abandoned.Load() {
			entries = append(entries, u.entries...)
		}
	}
	if len(entries) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
		p.opts.Store.commit(ctx, entries)
		cancel()
	}
	for _, u := range units {
		close(u.done)
	}
	p.enqueue(entries)
}

func (p *Publisher) enqueue(entries []*entry) {
	accepted := make([]*Stored, 0, len(entries))
	for _, e := range entries {
		if e.status == Accepted {
			accepted = append(accepted, &e.Stored)
		}
	}
	if len(accepted) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), enqueueTimeout)
	defer cancel()
	if err := p.opts.Enqueue(ctx, accepted); err != nil {
		p.opts.Logger.Warn("accepted events are left to the sweeper", "events", len(accepted), "error", err)
	}
}
