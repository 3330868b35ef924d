package peer

import (
	"context"
	"hash/maphash"
	"net/netip"
	"time"
)

// Turns bound the work of checking credentials: one at a time from an address
// (an IPv6 /64), and a few in all. The others wait for their turn, so that no
// number of wrong credentials shuts a right one out, neither of the same address
// nor of another.
type Turns struct {
	seed      maphash.Seed
	addresses [256]chan struct{} // by hash: two that share one wait for each other
	all       chan struct{}
}

// NewTurns admits so many at once in all.
func NewTurns(atOnce int) *Turns {
	t := &Turns{seed: maphash.MakeSeed(), all: make(chan struct{}, atOnce)}
	for i := range t.addresses {
		t.addresses[i] = make(chan struct{}, 1)
	}
	return t
}

// turnWait leaves of the API's 1.5 s what an answer takes.
const turnWait = time.Second

// Take returns when it is the address's turn, and how to end it; it errs when
// that takes longer than turnWait, or ctx ends.
func (t *Turns) Take(ctx context.Context, address netip.Addr) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, turnWait)
	defer cancel()
	mine := t.slot(address)
	select {
	case mine <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
		return func() { <-t.all; <-mine }, nil
	case <-ctx.Done():
		<-mine
		return nil, ctx.Err()
	}
}

func (t *Turns) slot(address netip.Addr) chan struct{} {
	return t.addresses[maphash.Comparable(t.seed, Network(address))%uint64(len(t.addresses))]
}
