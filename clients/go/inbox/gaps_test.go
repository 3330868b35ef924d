package inbox

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"spendhook/internal/waittest"
)

// The inbox lacks the third event of five. It reads the feed once, after deliveries that are linked, and not for one
// that came too early.
func TestFillGaps(t *testing.T) {
	t.Parallel()
	server, feed := newFeed(t)
	b := newBox(t, &MemoryStore[any]{}, feed)
	b.lateness, b.checkEvery = 0, time.Hour
	server.add("evt_1", "{}")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	filled := make(chan string, 10)
	work := b.o.Work
	b.o.Work = func(ctx context.Context, e *Event, tx any) error {
		err := work(ctx, e, tx)
		filled <- e.ID
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.FillGaps(ctx)
	}()
	if id := <-filled; id != "evt_1" { // by its first reading
		t.Fatal(id)
	}
	b.awaitRead(t, 1)
	server.add("evt_2", "{}")
	b.deliverAfter(t, "evt_2", "{}", "2", "1")
	server.add("evt_3", "{}")
	server.add("evt_4", "{}")
	b.deliverAfter(t, "evt_4", "{}", "4", "3")
	for _, want := range []string{"evt_2", "evt_4", "evt_3"} {
		if id := <-filled; id != want {
			t.Errorf("worked on %s, want %s", id, want)
		}
	}
	b.awaitRead(t, 4)
	server.add("evt_5", "{}")
	server.add("evt_6", "{}")
	b.deliverAfter(t, "evt_6", "{}", "6", "")
	for _, want := range []string{"evt_6", "evt_5"} {
		if id := <-filled; id != want {
			t.Errorf("worked on %s, want %s", id, want)
		}
	}
	b.awaitRead(t, 6)
	stop()
	<-ended
	if len(server.asked) != 4 || len(b.failed) > 0 { // the second reading has two pages
		t.Errorf("asked %q, failed %v", server.asked, b.failed)
	}
}

// awaitRead waits until no event up to a number is missing.
func (b *box) awaitRead(t *testing.T, upTo int64) {
	t.Helper()
	waittest.Until(t, "the feed is read", func() bool {
		b.chain.mu.Lock()
		defer b.chain.mu.Unlock()
		return b.chain.upTo >= upTo
	})
}

// Whatever the order, the chain is open exactly while the one before a delivery is missing.
func TestChainIsOpenWhileOneIsMissing(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		numbers, at := []int64{1}, int64(1) // those of one subscriber
		for range 1 + random.IntN(20) {
			at += 1 + random.Int64N(3)
			numbers = append(numbers, at)
		}
		c := newChain()
		c.watch(true)
		c.read(0, 1)
		came := map[int64]bool{1: true}
		for _, i := range random.Perm(len(numbers) - 1) {
			c.delivered(numbers[i+1], numbers[i])
			came[numbers[i+1]] = true
			missing := false
			for j := 1; j < len(numbers); j++ {
				missing = missing || came[numbers[j]] && !came[numbers[j-1]]
			}
			if open := c.highest() > 0; open != missing || c.missing(at) != missing {
				t.Fatalf("%v of %v have come: open %t, want %t", came, numbers, open, missing)
			}
		}
		if c.upTo != at {
			t.Fatalf("%v: up to %d", numbers, c.upTo)
		}
	}
}

// What the feed has answers every question about the events before, and nothing about those after.
func TestChainAfterTheFeedWasRead(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		number, previous, read int64
		open                   bool
	}{
		{7, 0, 7, false}, {7, 0, 6, true}, {7, 5, 4, true}, {7, 5, 5, false}, {7, 5, 9, false}, {7, 0, 9, false}, {0, 0, 0, false},
	} {
		chain := newChain()
		chain.watch(true)
		chain.delivered(c.number, c.previous)
		chain.read(0, c.read)
		if open := chain.highest() > 0; open != c.open {
			t.Errorf("case %d: open %t", i, open)
		}
	}
	c := newChain()
	c.delivered(7, 5)
	c.watch(true)
	if c.highest() > 0 {
		t.Error("it is open before it is watched")
	}
	for n := range int64(maxOpen + 1) {
		c.delivered(2*n+100, 2*n+99)
	}
	if c.read(0, 2*maxOpen+99); len(c.waiting) > 0 || c.highest() != 2*maxOpen+100 {
		t.Error("of more deliveries than are kept, the last is forgotten")
	}
	if c.read(0, 2*maxOpen+100); c.highest() > 0 {
		t.Errorf("open after %s", strconv.Itoa(2*maxOpen+100))
	}
}

// A delivery that came late answers the question, also when others are asked meanwhile.
func TestChainForgivesLateDeliveries(t *testing.T) {
	t.Parallel()
	c := newChain()
	c.watch(true)
	c.read(0, 1)
	c.delivered(3, 2)
	asked := c.highest()
	c.delivered(2, 1)
	c.delivered(5, 4)
	if asked != 3 || c.missing(asked) || !c.missing(5) {
		t.Errorf("asked up to %d, missing %t", asked, c.missing(asked))
	}
}

// A wrong number, which nothing signs, is corrected by the next reading of the feed.
func TestChainSurvivesWrongNumbers(t *testing.T) {
	t.Parallel()
	const wrong = 1 << 60
	for i, previous := range []int64{0, 1, wrong - 1} {
		c := newChain()
		c.watch(true)
		c.read(0, 1)
		c.delivered(wrong, previous)
		before := c.reading()
		c.delivered(6, 5) // meanwhile
		if c.read(before, 5); c.highest() > 0 && previous != 1 || c.upTo > 6 {
			t.Errorf("case %d: up to %d, open %d", i, c.upTo, c.highest())
		}
		c.delivered(8, 7)
		if c.highest() != 8 {
			t.Errorf("case %d: the gap is not noticed", i)
		}
	}
}
