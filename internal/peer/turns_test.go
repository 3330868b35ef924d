package peer

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// An address has one turn at a time, all addresses have a few. A caller that waits too long
// gets an error and leaves no state behind.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(2)
		here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		for turns.slot(there) == turns.slot(here) || turns.slot(there) == turns.slot(netip.Addr{}) || turns.slot(here) == turns.slot(netip.Addr{}) {
			turns = NewTurns(2) // two that share a slot
		}
		take := func(address netip.Addr) func() {
			t.Helper()
			end, err := turns.Take(t.Context(), address)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
		refused := func(what string, address netip.Addr) {
			t.Helper()
			began := time.Now()
			if _, err := turns.Take(t.Context(), address); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != turnWait {
				t.Errorf("%s: %v after %v", what, err, time.Since(began))
			}
		}
		end := take(here)
		refused("a second one of the address", here)
		endThere := take(there)
		refused("a third one of all", netip.Addr{})
		next := make(chan func())
		go func() { next <- take(here) }()
		synctest.Wait()
		end()
		(<-next)()
		endThere()
		take(netip.Addr{})()
		if len(turns.all) != 0 {
			t.Error("a turn that ended is kept")
		}
	})
}
