package dispatcher

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"spendhook/dispatcher/webhook"
)

// slotWait is how long the tests' callers wait for a slot.
const slotWait = 250 * time.Millisecond

// endpointID is the n-th subscriber of a test.
func endpointID(n int) uuid.UUID { return uuid.UUID{14: byte(n >> 8), 15: byte(n)} }

func answered(d time.Duration) webhook.Result { return webhook.Result{StatusCode: 200, Duration: d} }

func timedOut() webhook.Result {
	return webhook.Result{Class: webhook.ClassTimeout, Duration: 15 * time.Second}
}

// mustAcquire takes a slot that has to be there at once.
func mustAcquire(t *testing.T, s *endpoints, n int) func(webhook.Result) {
	t.Helper()
	began := time.Now()
	release, _, ok := s.acquire(t.Context(), endpointID(n), slotWait)
	if !ok || time.Since(began) != 0 {
		t.Fatalf("endpoint %d: slot %v after %v, want one at once", n, ok, time.Since(began))
	}
	return release
}

// mustDefer asks for a slot of endpoint 0 that must be refused at once.
func mustDefer(t *testing.T, s *endpoints) time.Duration {
	t.Helper()
	began := time.Now()
	_, after, ok := s.acquire(t.Context(), endpointID(0), slotWait)
	if ok || time.Since(began) != 0 || after < minDeferral || after > maxDeferral {
		t.Fatalf("slot %v after %v, deferred by %v, want a refusal at once", ok, time.Since(began), after)
	}
	return after
}

// hangOn attempts again and again to an endpoint that never answers.
func hangOn(ctx context.Context, s *endpoints, n int) {
	for ctx.Err() == nil {
		release, after, ok := s.acquire(ctx, endpointID(n), slotWait)
		if !ok {
			sleep(ctx, after)
			continue
		}
		sleep(ctx, 15*time.Second)
		release(timedOut())
	}
}

// sleep lets the virtual time of a bubble pass.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// checkIdle fails when a finished test left anything behind.
func checkIdle(t *testing.T, s *endpoints) {
	t.Helper()
	for _, e := range s.byID {
		if e.inFlight != 0 || e.waiting.Len() != 0 {
			t.Errorf("endpoint %v: %d in flight, %d waiting", e.id, e.inFlight, e.waiting.Len())
		}
	}
	if s.used != 0 || !s.slots.TryAcquire(int64(s.Concurrency)) {
		t.Errorf("%d slots are still taken", s.used)
	}
}

func TestHungEndpointsNeverTakeAllSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		for n := 1; n <= 200; n++ {
			for range 20 { // 4,000 deliveries for 2,048 slots
				go hangOn(ctx, s, n)
			}
		}
		for range 20 {
			sleep(ctx, 2*time.Second)
			synctest.Wait()
			if free := s.Concurrency - s.inFlight(); free < s.Concurrency/64 {
				t.Fatalf("only %d of %d slots are free", free, s.Concurrency)
			}
			mustAcquire(t, s, 0)(answered(time.Millisecond))
		}
		if open := s.counts()[stateOpen] + s.counts()[stateHalfOpen]; open != 200 {
			t.Errorf("%d breakers are not closed, want 200", open)
		}
		cancel()
		synctest.Wait()
		checkIdle(t, s)
	})
}

func TestAHealthyEndpointNeverWaitsBesideHungOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		for n := 1; n <= 50; n++ {
			for range 64 {
				go hangOn(ctx, s, n)
			}
		}
		synctest.Wait()
		for range 400 { // 18 s, 8 at a time: past the first time-outs
			var releases []func(webhook.Result)
			for range 8 {
				releases = append(releases, mustAcquire(t, s, 0))
			}
			sleep(t.Context(), 45*time.Millisecond)
			for _, release := range releases {
				release(answered(45 * time.Millisecond))
			}
		}
		cancel()
		synctest.Wait()
		checkIdle(t, s)
	})
}

// Thousands of dead endpoints at once would add up even at one attempt each.
func TestFailingEndpointsLeaveTheLastEighth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{Concurrency: 64})
		for n := 1; n <= 200; n++ {
			mustAcquire(t, s, n)(timedOut())
		}
		for n := 1; n <= 200; n++ {
			s.acquire(t.Context(), endpointID(n), slotWait)
		}
		if got := s.inFlight(); got != 56 {
			t.Errorf("failing endpoints hold %d of 64 slots, want 56", got)
		}
		mustAcquire(t, s, 0)(answered(time.Millisecond))
	})
}

func TestOneEndpointMayHaveSixtyFourInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{Concurrency: 1 << 20})
		mustAcquire(t, s, 0)(answered(time.Minute))
		for range maxPerEndpoint {
			mustAcquire(t, s, 0)
		}
		mustDefer(t, s)
	})
}

// slowPair is an endpoint at its cap of two, whose attempts take as long as given.
func slowPair(t *testing.T, latency time.Duration) (s *endpoints, releases []func(webhook.Result)) {
	t.Helper()
	s = newEndpoints(endpointsOptions{PerEndpoint: 2})
	mustAcquire(t, s, 0)(answered(latency))
	return s, []func(webhook.Result){mustAcquire(t, s, 0), mustAcquire(t, s, 0)}
}

func TestDeferralsOfASlowEndpointAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := slowPair(t, 4*time.Second)
		for i := 1; i <= 200; i++ { // two at a time, 4 s each: one every 2 s
			want := min(minDeferral+time.Duration(i)*2*time.Second, maxDeferral)
			if got := mustDefer(t, s); got != want {
				t.Fatalf("deferral %d is %v, want %v", i, got, want)
			}
		}
		sleep(t.Context(), maxDeferral+time.Minute)
		if got := mustDefer(t, s); got != 3*time.Second {
			t.Errorf("once all have come back: %v, want 3s", got)
		}
	})
}

func TestWaitersAreServedInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, releases := slowPair(t, 10*time.Millisecond)
		served := make(chan int, 5)
		for i := range 5 {
			go func() {
				release, _, ok := s.acquire(t.Context(), endpointID(0), slotWait)
				if !ok {
					t.Errorf("waiter %d was refused", i)
					return
				}
				served <- i
				sleep(t.Context(), 10*time.Millisecond)
				release(answered(10 * time.Millisecond))
			}()
			synctest.Wait()
		}
		releases[0](answered(10 * time.Millisecond))
		for want := range 5 {
			if got := <-served; got != want {
				t.Errorf("served %d, want %d", got, want)
			}
		}
		synctest.Wait()
		sleep(t.Context(), time.Second)
		releases[1](answered(0))
		checkIdle(t, s)
	})
}

func TestNobodyWaitsForASlotThatIsNotLikely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, _ := slowPair(t, 200*time.Millisecond) // a slot every 100 ms
		for range 2 {
			go s.acquire(t.Context(), endpointID(0), slotWait)
			synctest.Wait()
		}
		mustDefer(t, s) // the third would wait 300 ms
		sleep(t.Context(), time.Second)
	})
}

func TestAWaitInVainSaturatesTheEndpoint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, releases := slowPair(t, 10*time.Millisecond)
		began := time.Now()
		if _, after, ok := s.acquire(t.Context(), endpointID(0), slotWait); ok || after < minDeferral {
			t.Fatalf("slot %v, deferred by %v", ok, after)
		}
		if waited := time.Since(began); waited != slotWait {
			t.Errorf("waited %v, want %v", waited, slotWait)
		}
		mustDefer(t, s)

		releases[0](answered(10 * time.Millisecond))
		mustAcquire(t, s, 0) // and with the cap reached again, waiting is allowed again
		began = time.Now()
		s.acquire(t.Context(), endpointID(0), slotWait)
		if waited := time.Since(began); waited != slotWait {
			t.Errorf("waited %v after a release, want %v", waited, slotWait)
		}
	})
}

func TestACancelledWaiterLeavesNoTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, releases := slowPair(t, 10*time.Millisecond)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, after, ok := s.acquire(ctx, endpointID(0), slotWait); ok || after != 0 {
				t.Errorf("cancelled: slot %v, deferred by %v", ok, after)
			}
		}()
		synctest.Wait()
		cancel()
		<-done
		if s.byID[endpointID(0)].saturated {
			t.Error("the endpoint counts as saturated")
		}
		for _, release := range releases {
			release(answered(10 * time.Millisecond))
		}
		checkIdle(t, s)
	})
}

func TestTheBreakerOpensAndProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{})
		for range breakerFailures {
			mustAcquire(t, s, 0)(webhook.Result{Class: webhook.ClassConnect, Duration: time.Millisecond})
		}
		wantStates(t, s, 0, 0, 1)
		for i := 1; i <= 3; i++ {
			want := breakerPause + time.Duration(i)*minStepOpen
			if got := mustDefer(t, s); got != want {
				t.Errorf("deferred by %v, want %v", got, want)
			}
		}

		sleep(t.Context(), breakerPause+1)
		probe := mustAcquire(t, s, 0)
		mustDefer(t, s) // one probe at a time
		wantStates(t, s, 0, 1, 0)
		probe(timedOut())
		wantStates(t, s, 0, 0, 1)

		sleep(t.Context(), breakerPause+1)
		mustAcquire(t, s, 0)(webhook.Result{Class: webhook.ClassAborted}) // says nothing: the next may probe
		wantStates(t, s, 0, 1, 0)
		mustAcquire(t, s, 0)(webhook.Result{Class: webhook.ClassHTTP5xx, StatusCode: 500})
		wantStates(t, s, 1, 0, 0)
		mustAcquire(t, s, 0)(answered(time.Millisecond))
		checkIdle(t, s)
	})
}

func TestAnAbortedAttemptTeachesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{})
		mustAcquire(t, s, 0)(timedOut())
		mustAcquire(t, s, 0)(webhook.Result{Class: webhook.ClassAborted, Duration: time.Millisecond})
		if e := s.byID[endpointID(0)]; !e.failing || e.latency != timedOut().Duration {
			t.Errorf("failing %v, latency %v", e.failing, e.latency)
		}
	})
}

// What was put off while the endpoint was down does not hold back what comes
// after it is up.
func TestTheDeferralsStartAnewWhenTheBreakerCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{PerEndpoint: 2, BreakerTripsAt: 1})
		mustAcquire(t, s, 0)(timedOut())
		for range 1000 {
			mustDefer(t, s)
		}
		sleep(t.Context(), breakerPause+1)
		mustAcquire(t, s, 0)(answered(2 * time.Second))
		mustAcquire(t, s, 0)
		mustAcquire(t, s, 0)
		if got := mustDefer(t, s); got > 10*time.Second {
			t.Errorf("deferred by %v", got)
		}
	})
}

func wantStates(t *testing.T, s *endpoints, closed, halfOpen, open int) {
	t.Helper()
	got := s.counts()
	if got[stateClosed] != closed || got[stateHalfOpen] != halfOpen || got[stateOpen] != open || len(got) != 3 {
		t.Errorf("states %v, want %d closed, %d half open, %d open", got, closed, halfOpen, open)
	}
}

func TestOnlyUnreachableEndpointsOpenTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for i, class := range webhook.ErrorClasses() {
			s := newEndpoints(endpointsOptions{})
			for range 3 * breakerFailures {
				if release, _, ok := s.acquire(t.Context(), endpointID(i), 0); ok {
					release(webhook.Result{Class: class})
				}
			}
			if open := s.counts()[stateOpen] == 1; open != class.Unreachable() {
				t.Errorf("class %q: breaker open %v", class, open)
			}
		}
	})
}

func TestWaitersAreSentAwayWhenTheBreakerOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{PerEndpoint: 2, BreakerTripsAt: 1})
		mustAcquire(t, s, 0)(answered(time.Millisecond))
		release := mustAcquire(t, s, 0)
		mustAcquire(t, s, 0)
		done := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				_, after, _ := s.acquire(t.Context(), endpointID(0), slotWait)
				done <- after
			}()
		}
		synctest.Wait()
		began := time.Now()
		release(timedOut())
		for range 3 {
			if after := <-done; after <= breakerPause || time.Since(began) != 0 {
				t.Errorf("deferred by %v after %v", after, time.Since(began))
			}
		}
	})
}

func TestFullSlotsHoldBackCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{Concurrency: 2})
		first := mustAcquire(t, s, 1)
		mustAcquire(t, s, 2)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, after, ok := s.acquire(ctx, endpointID(3), slotWait); ok || after != 0 {
			t.Errorf("no slot is free: slot %v, deferred by %v", ok, after)
		}
		if got := s.inFlight(); got != 2 {
			t.Errorf("%d in flight, want 2", got)
		}

		done := make(chan bool)
		go func() {
			_, _, ok := s.acquire(t.Context(), endpointID(3), slotWait)
			done <- ok
		}()
		synctest.Wait()
		first(answered(time.Millisecond))
		if !<-done {
			t.Error("the freed slot was not passed on")
		}
	})
}

func TestIdleEndpointsAreForgottenBeyondTheBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newEndpoints(endpointsOptions{MaxEndpoints: 3, BreakerTripsAt: 1})
		mustAcquire(t, s, 1)(timedOut())
		busy := mustAcquire(t, s, 2)
		for n := 3; n <= 50; n++ {
			mustAcquire(t, s, n)(answered(time.Millisecond))
		}
		if len(s.byID) != 3 || s.lru.Len() != 3 || s.byID[endpointID(2)] == nil {
			t.Errorf("%d endpoints remembered, the busy one: %v", len(s.byID), s.byID[endpointID(2)] != nil)
		}
		wantStates(t, s, 3, 0, 0)
		busy(answered(time.Millisecond))
		checkIdle(t, s)
	})
}

// Whatever happens in whatever order, the books balance.
func TestTheBooksBalance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s := newEndpoints(endpointsOptions{
			Concurrency: 8, PerEndpoint: 3, MaxEndpoints: 4, BreakerTripsAt: 2, BreakerPause: time.Microsecond,
		})
		var held []func(webhook.Result)
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Microsecond)
				defer cancel()
				n := rapid.IntRange(0, 8).Draw(rt, "endpoint")
				release, after, ok := s.acquire(ctx, endpointID(n), time.Microsecond)
				if ok {
					held = append(held, release)
				} else if after > maxDeferral || after < 0 {
					rt.Fatalf("deferred by %v", after)
				}
			},
			"release": func(rt *rapid.T) {
				if len(held) == 0 {
					rt.SkipNow()
				}
				i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
				held[i](webhook.Result{
					Class:    rapid.SampledFrom(webhook.ErrorClasses()).Draw(rt, "class"),
					Duration: time.Duration(rapid.IntRange(0, 15_000).Draw(rt, "ms")) * time.Millisecond,
				})
				held = append(held[:i], held[i+1:]...)
			},
			"": func(rt *rapid.T) { checkBooks(rt, s, len(held)) },
		})
	})
}

func checkBooks(t *rapid.T, s *endpoints, held int) {
	inFlight, states := 0, map[string]int{}
	for _, e := range s.byID {
		inFlight += e.inFlight
		states[e.state]++
		if e.waiting.Len() != 0 {
			t.Fatalf("%d still waiting", e.waiting.Len())
		}
	}
	if inFlight != held || s.used != held || s.inFlight() != held {
		t.Fatalf("%d held, %d in flight, %d used", held, inFlight, s.used)
	}
	if got := s.counts(); fmt.Sprint(got) != fmt.Sprint(map[string]int{
		stateClosed: states[stateClosed], stateHalfOpen: states[stateHalfOpen], stateOpen: states[stateOpen],
	}) {
		t.Fatalf("states %v, counted %v", got, states)
	}
	if s.lru.Len() != len(s.byID) || len(s.byID) > s.MaxEndpoints+s.Concurrency {
		t.Fatalf("%d remembered, %d listed", len(s.byID), s.lru.Len())
	}
}

func BenchmarkAcquire(b *testing.B) {
	s := newEndpoints(endpointsOptions{})
	id := endpointID(1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if release, _, ok := s.acquire(b.Context(), id, slotWait); ok {
				release(answered(time.Millisecond))
			}
		}
	})
}
