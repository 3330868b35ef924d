package auth

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

func TestFailuresAreLimitedByAddress(t *testing.T) {
	t.Parallel()
	l := newFailureLimit()
	for i := range addressFailures {
		if _, wait := l.take(home, strconv.Itoa(i), noon); wait > 0 {
			t.Fatalf("attempt %d waits %v", i, wait)
		}
	}
	if _, wait := l.take(home, "x", noon); wait != addressEvery {
		t.Errorf("the next one waits %v", wait)
	}
	if _, wait := l.take(netip.MustParseAddr("192.0.2.2"), "x", noon); wait > 0 {
		t.Error("another address waits too")
	}
	if _, wait := l.take(home, "x", noon.Add(addressEvery)); wait > 0 {
		t.Errorf("a while later it waits %v", wait)
	}
	if _, wait := l.take(home, "x", noon.Add(addressEvery)); wait == 0 {
		t.Error("a while gives more than one")
	}
	if _, wait := l.take(home, "x", noon.Add(-time.Hour)); wait > addressEvery {
		t.Errorf("a clock that was set back makes it wait %v", wait)
	}
}

func TestFailuresAreLimitedByClientAndInAll(t *testing.T) {
	t.Parallel()
	from := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	l := newFailureLimit()
	for i := range clientFailures {
		if _, wait := l.take(from(i), "one", noon); wait > 0 {
			t.Fatalf("attempt %d waits", i)
		}
	}
	if _, wait := l.take(from(1000), "one", noon); wait == 0 {
		t.Error("a client can be guessed at from many addresses")
	}
	allowed := 0
	for i := range 10_000 {
		if _, wait := l.take(from(2000+i), strconv.Itoa(i), noon); wait == 0 {
			allowed++
		}
	}
	if allowed != allFailures-clientFailures {
		t.Errorf("%d attempts by everybody, want %d", allowed, allFailures-clientFailures)
	}
	if l.addresses.Len() > limitedAddresses || l.clients.Len() > limitedClients {
		t.Error("it remembers more than it may")
	}
}

func TestSuccessCostsNothingOfTheLimit(t *testing.T) {
	t.Parallel()
	l := newFailureLimit()
	for range 10 * allFailures {
		giveBack, wait := l.take(home, "one", noon)
		if wait > 0 {
			t.Fatal("a client that is right waits")
		}
		giveBack()
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "2001:db8:1:2::1": "2001:db8:1:2::/64",
	} {
		if got := network(netip.MustParseAddr(address)).String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	if got := network(netip.Addr{}); got != (netip.Prefix{}) {
		t.Errorf("no address: %v", got)
	}
}

func TestGateLetsFewInAndFewWait(t *testing.T) {
	t.Parallel()
	g := newGate(1, 2, time.Hour)
	leave, err := g.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	results := make(chan error, 2)
	for range 2 {
		waiting.Go(func() {
			leave, err := g.enter(ctx)
			if err == nil {
				leave()
			}
			results <- err
		})
	}
	for len(g.queue) < 3 {
		runtime.Gosched()
	}
	if _, err := g.enter(t.Context()); !errors.Is(err, errBusy) {
		t.Errorf("the fourth: %v", err)
	}
	leave()
	if err := <-results; err != nil {
		t.Errorf("the second: %v", err)
	}
	waiting.Wait()
	cancel()
	if leave, err = g.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.wait = time.Nanosecond
	if _, err := g.enter(t.Context()); !errors.Is(err, errBusy) {
		t.Errorf("one that has waited long: %v", err)
	}
	g.wait = time.Hour
	if _, err := g.enter(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("one that has gone: %v", err)
	}
	leave()
	if len(g.queue) != 0 || len(g.slots) != 0 {
		t.Error("somebody is still inside")
	}
}
