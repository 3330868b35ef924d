package inbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"spendhook/internal/pause"
)

const (
	// lateness is how long after a delivery the one before it may come.
	lateness = 5 * time.Second
	// checkEvery is how often the feed is read anyway: after the last event, no delivery says that it is missing.
	checkEvery = 10 * time.Minute
	// maxOpen bounds the deliveries that are kept until the one before them comes.
	maxOpen = 10_000
)

// FillGaps catches up, and then again when the event that a delivery names as the one before it has not come within 5
// seconds, when a delivery names none, and every 10 minutes. It returns when ctx ends, or at once without a feed. Errors are
// treated as by Follow. It costs less than Follow, with which every event comes twice, but it knows only of deliveries to
// this process: if several processes share a store, each of them reads the feed while deliveries come.
func (i *Inbox[T]) FillGaps(ctx context.Context) {
	if i.o.Feed == nil {
		i.o.Failed(fmt.Errorf("fill gaps: %w", errNoFeed))
		return
	}
	i.chain.watch(true)
	defer i.chain.watch(false)
	failures := 0
	for ctx.Err() == nil {
		if _, err := i.CatchUp(ctx); err != nil {
			if ctx.Err() == nil {
				i.o.Failed(fmt.Errorf("fill gaps: %w", err))
				pause.For(ctx, i.backoff(failures))
				failures++
			}
			continue
		}
		failures = 0
		i.awaitGap(ctx)
	}
}

// awaitGap returns when the feed is to be read.
func (i *Inbox[T]) awaitGap(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, i.checkEvery)
	defer cancel()
	for {
		asked := i.chain.highest()
		if asked == 0 {
			select {
			case <-ctx.Done():
				return
			case <-i.chain.opened:
				continue
			}
		}
		if !pause.For(ctx, i.lateness) || i.chain.missing(asked) {
			return
		}
	}
}

// chain knows which deliveries have come, by the event that each of them names as the one before it.
type chain struct {
	mu      sync.Mutex
	watched bool
	upTo    int64           // no event up to this number is missing
	waiting map[int64]int64 // deliveries that came before the one that they name, by its number
	unknown int64           // the highest number of a delivery that named none
	opened  chan struct{}   // has a value when a delivery came whose predecessor is missing
}

func newChain() *chain { return &chain{waiting: map[int64]int64{}, opened: make(chan struct{}, 1)} }

func (c *chain) watch(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = on
	clear(c.waiting)
	c.unknown = 0
}

// delivered notes the number of an event and of the one before it; 0: unknown.
func (c *chain) delivered(number, previous int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.watched || number <= c.upTo:
		return
	case previous == 0 || len(c.waiting) == maxOpen:
		c.unknown = max(c.unknown, number)
	case previous <= c.upTo:
		c.link(number)
		return
	default:
		c.waiting[previous] = number
	}
	select {
	case c.opened <- struct{}{}:
	default:
	}
}

// reading notes that the feed is about to be read, which answers all questions so far. Its result is for read.
func (c *chain) reading() (before int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.waiting)
	c.unknown = 0
	return c.upTo
}

// read notes that the feed was read up to a number. before is higher only after a wrong number in a delivery.
func (c *chain) read(before, upTo int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before > upTo {
		c.upTo = upTo
	}
	c.link(upTo)
}

// link notes that nothing up to a number is missing, and goes on with the deliveries that follow. c.mu is held.
func (c *chain) link(upTo int64) {
	c.upTo = max(c.upTo, upTo)
	for _, previous := range slices.Sorted(maps.Keys(c.waiting)) {
		if previous > c.upTo {
			return
		}
		c.upTo = max(c.upTo, c.waiting[previous])
		delete(c.waiting, previous)
	}
}

// highest is the highest number of a delivery whose predecessor may be missing; 0: there is none.
func (c *chain) highest() (number int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unknown > c.upTo {
		number = c.unknown
	}
	for _, n := range c.waiting {
		number = max(number, n)
	}
	return number
}

// missing reports whether the predecessor of a delivery up to a number may be missing still.
func (c *chain) missing(upTo int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.waiting {
		if n <= upTo {
			return true
		}
	}
	return c.unknown > c.upTo
}
