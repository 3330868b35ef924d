package dispatcher

import (
	"runtime"
	"sync"

	"github.com/google/uuid"
)

// startsPerTurn is how many attempts a starter begins before it lets other goroutines run.
const startsPerTurn = 16

// starter begins attempts, those of each company in turn. After a few it lets all other goroutines run that
// wait for a core. So a flood of attempts that fail or succeed fast delays neither requests nor the attempts of
// other companies, and takes what is left of the CPU.
type starter struct {
	begin func(*work)

	mu      sync.Mutex
	waiting map[uuid.UUID][]*work // by company; no entry is empty
	turns   []uuid.UUID           // companies in waiting, the next first
	running int                   // goroutines that begin attempts
}

func newStarter(begin func(*work)) *starter {
	return &starter{begin: begin, waiting: make(map[uuid.UUID][]*work)}
}

// add has an attempt begun. It does not wait.
func (s *starter) add(running *sync.WaitGroup, w *work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	company := w.ref.Company
	if len(s.waiting[company]) == 0 {
		s.turns = append(s.turns, company)
	}
	s.waiting[company] = append(s.waiting[company], w)
	if s.running < runtime.GOMAXPROCS(0) {
		s.running++
		running.Go(func() {
			for n := 1; ; n++ {
				next := s.next()
				if next == nil {
					return
				}
				running.Go(func() { s.begin(next) })
				if n%startsPerTurn == 0 {
					runtime.Gosched()
				}
			}
		})
	}
}

// next removes the attempt whose turn it is; nil when there is none: then the caller ends.
func (s *starter) next() *work {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.turns) == 0 {
		s.running--
		return nil
	}
	company := s.turns[0]
	s.turns = s.turns[1:]
	first, rest := s.waiting[company][0], s.waiting[company][1:]
	if len(rest) == 0 {
		delete(s.waiting, company)
	} else {
		s.waiting[company] = rest
		s.turns = append(s.turns, company)
	}
	return first
}
