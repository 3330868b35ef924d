package peer

import (
	"context"
	"hash/maphash"
	"net/netip"
	"time"
)

// Turns bounds concurrent checks of credentials: one per address (IPv6: per /64), and a few in
// total. Other checks wait for their turn. So a flood of wrong credentials does not block correct
// ones, even from the same address.
type Turns struct {
	seed      maphash.Seed
	addresses [256]chan struct{} // by hash; two addresses with the same slot wait for each other
	all       chan struct{}
}

// NewTurns returns Turns that allow atOnce checks at the same time in total.
func NewTurns(atOnce int) *Turns {
	t := &Turns{seed: maphash.MakeSeed(), all: make(chan struct{}, atOnce)}
	for i := range t.addresses {
		t.addresses[i] = make(chan struct{}, 1)
	}
	return t
}

// turnWait is less than the API's limit of 1.5 s, to leave time for the answer.
const turnWait = time.Second

// Take waits for the address's turn and returns a function that ends the turn. It fails after
// turnWait, or when ctx ends.
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
