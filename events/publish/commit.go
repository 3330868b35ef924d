package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"spendhook/events"
)

const (
	maxBatch = 128 // events of a commit
	// maxBatchBytes bounds the bytes of a commit, so that its pipeline does not block Redis.
	// The last event may exceed the bound.
	maxBatchBytes = 4 << 20
	// minTurn is the smallest share of a company in a commit.
	minTurn = 4
	// commitTimeout bounds how long a committer waits for Redis. Callers have their own
	// contexts.
	commitTimeout = 2 * time.Second
)

// request is the valid events of one Accept call.
type request struct {
	entries   []*entry
	open      atomic.Int64 // entries without a result
	done      chan struct{}
	abandoned atomic.Bool // the caller has stopped waiting
}

func (r *request) add(e *entry) {
	e.request = r
	r.entries = append(r.entries, e)
	r.open.Add(1)
}

// entryDone notes that one entry has its result. The last one closes done.
func (r *request) entryDone() {
	if r.open.Add(-1) == 0 {
		close(r.done)
	}
}

// err is not nil when Redis failed for any of the entries. Call it once done is closed.
func (r *request) err() error {
	for _, e := range r.entries {
		if errors.Is(e.result.Err, events.ErrUnavailable) {
			return e.result.Err
		}
	}
	return nil
}

// committer has the events of one shard, which are written in group commits, one at a time. Events that arrive
// during a commit are queued by company for the next one. Companies are served in turn. Publisher.mu guards it.
// It exists while events of the shard are written.
type committer struct {
	waiting map[uuid.UUID]*companyQueue
	turn    []*companyQueue // companies with entries, in the order in which they are served
}

// companyQueue is the entries of one company that wait for their commit.
type companyQueue struct {
	company uuid.UUID
	entries []*entry
}

// push queues the entries, in order.
func (c *committer) push(entries []*entry) {
	for _, e := range entries {
		b := c.waiting[e.Company]
		if b == nil {
			b = &companyQueue{company: e.Company}
			c.waiting[e.Company] = b
			c.turn = append(c.turn, b)
		}
		b.entries = append(b.entries, e)
	}
}

// commitAll commits until no event of a shard waits.
func (p *Publisher) commitAll(shard string) {
	for batch := p.next(shard); batch != nil; batch = p.next(shard) {
		p.commit(batch)
	}
}

// next removes the entries of a shard's next commit. It returns nil, and removes the committer, when none wait.
func (p *Publisher) next(shard string) []*entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.shards[shard]
	if len(c.turn) == 0 {
		delete(p.shards, shard)
		return nil
	}
	return c.gather()
}

// gather removes the entries of the next commit.
func (c *committer) gather() (batch []*entry) {
	bytes, others, fair := 0, len(c.turn) > 1, maxBatch/len(c.turn)
	for turns := len(c.turn); turns > 0 && len(batch) < maxBatch && bytes < maxBatchBytes; turns-- {
		b := c.turn[0]
		c.turn = c.turn[1:]
		most := maxBatch - len(batch)
		if others {
			most = min(most, max(fair, minTurn))
		}
		n := 0
		for n < len(b.entries) && n < most && bytes < maxBatchBytes {
			bytes += len(b.entries[n].kept)
			n++
		}
		batch = append(batch, b.entries[:n]...)
		if b.entries = b.entries[n:]; len(b.entries) > 0 {
			c.turn = append(c.turn, b)
		} else {
			delete(c.waiting, b.company)
		}
	}
	return batch
}

// commit writes entries and answers them. Then it starts the events of partitions that this replica owns, and wakes
// the owners of the others. Answers need not wait for that: the events are already durable, with their place in the
// log.
func (p *Publisher) commit(entries []*entry) {
	var calls []*acceptCall
	if live := wanted(entries); len(live) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
		calls = p.write(ctx, live)
		cancel()
	}
	p.counted(entries) // before entryDone, after which the callers own the results
	for _, e := range entries {
		e.request.entryDone()
	}
	var wakes []int
	for _, c := range calls {
		c.start(p.opts.Owner)
		wakes = append(wakes, c.wakes...)
	}
	slices.Sort(wakes)
	p.opts.Wake(context.Background(), slices.Compact(wakes))
}

// counted calls Options.Counted with the number of accepted events of each company.
func (p *Publisher) counted(entries []*entry) {
	if p.opts.Counted == nil {
		return
	}
	n := make(map[uuid.UUID]int, 1)
	for _, e := range entries {
		if e.result.Status == Accepted {
			n[e.Company]++
		}
	}
	for company, accepted := range n {
		p.opts.Counted(company, accepted)
	}
}

// wanted drops the entries of callers that no longer wait.
func wanted(entries []*entry) []*entry {
	live := make([]*entry, 0, len(entries))
	for _, e := range entries {
		if e.request.abandoned.Load() {
			e.result.Err = fmt.Errorf("%w: accept event: %w", events.ErrUnavailable, context.Canceled)
			continue
		}
		live = append(live, e)
	}
	return live
}
