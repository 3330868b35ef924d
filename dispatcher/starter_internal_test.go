package dispatcher

import (
	"runtime"
	"sync"
	"testing"

	"github.com/google/uuid"

	"spendhook/dispatcher/delivery"
	"spendhook/events"
)

// Attempts that wait to be begun have turns by company, and each is begun once.
func TestAttemptsAreBegunInTurns(t *testing.T) {
	t.Parallel()
	s := newStarter(nil)
	s.running = runtime.GOMAXPROCS(0) // none begins here
	var running sync.WaitGroup
	one, other := uuid.New(), uuid.New()
	for _, company := range []uuid.UUID{one, one, one, other, other} {
		s.add(&running, &work{ref: delivery.Ref{Ref: events.Ref{Company: company}}})
	}
	for i, want := range []uuid.UUID{one, other, one, other, one} {
		if next := s.next(); next == nil || next.ref.Company != want {
			t.Fatalf("attempt %d is of another company", i)
		}
	}
	if s.next() != nil || len(s.waiting) != 0 || s.running != runtime.GOMAXPROCS(0)-1 {
		t.Errorf("%d companies wait, %d goroutines", len(s.waiting), s.running)
	}
}

func TestAllAttemptsAreBegun(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	begun := map[*work]int{}
	s := newStarter(func(w *work) {
		mu.Lock()
		defer mu.Unlock()
		begun[w]++
	})
	var running sync.WaitGroup
	for i := range 500 {
		s.add(&running, &work{ref: delivery.Ref{Ref: events.Ref{Company: uuid.NewSHA1(uuid.Nil, []byte{byte(i % 7)})}}})
	}
	running.Wait()
	if len(begun) != 500 {
		t.Errorf("%d of 500 were begun", len(begun))
	}
}
