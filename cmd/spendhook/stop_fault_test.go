//go:build faults

package main

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"spendhook/internal/pause"
	"spendhook/internal/redistest"
)

// kills is how often daemons are killed under load.
const kills = 20

// slowpoke holds the first attempt of one event in twenty for longer than shutdown_grace. It
// counts the attempts whose sender disconnected.
type slowpoke struct {
	mu   sync.Mutex
	came map[string]bool
	held int
	cut  int
}

func (s *slowpoke) hold(id string, gone <-chan struct{}) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	s.mu.Lock()
	holds := !s.came[id] && h.Sum32()%20 == 1
	s.came[id] = true
	if holds {
		s.held++
	}
	s.mu.Unlock()
	if !holds {
		return true
	}
	patience := time.NewTimer(8 * time.Second)
	defer patience.Stop()
	select {
	case <-patience.C:
		return true
	case <-gone:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cut++
		return false
	}
}

// counts returns how many were held, and how many of them were cut.
func (s *slowpoke) counts() (held, cut int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held, s.cut
}

// The daemon gets SIGTERM under load, twice, while attempts are in flight that outlast
// shutdown_grace. These attempts are cut off and made again. Only answered attempts count.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	h := newInstallation(t, server.URL(), "shutdown_grace: 2s\n"+briefRetries)
	poke := &slowpoke{came: map[string]bool{}}
	tr := newTrial(t, server.Client(), h)
	tr.endpoints[0].holdWith(poke.hold)
	for range 2 {
		tr.grow(150)
		heldBefore, cutBefore := poke.counts()
		eventually(t, patience, "another attempt is held", func() bool {
			held, _ := poke.counts()
			return held > heldBefore
		})
		tr.daemons[0].signal(syscall.SIGTERM)
		tr.daemons[0].ended(t)
		if tr.daemons[0].code != exitOK {
			t.Errorf("exit code %d:\n%s", tr.daemons[0].code, tr.daemons[0].stderr)
		}
		eventually(t, patience, "an attempt was cut short", func() bool {
			_, cut := poke.counts()
			return cut > cutBefore
		})
		tr.replace(0, h.startChild(t))
	}
	tr.grow(50)
	tr.load.pause()
	if l := tr.account(); l.repeats > 0 {
		t.Errorf("%d answered attempts were not counted", l.repeats)
	}
	tr.finish()
}

// A daemon is killed repeatedly at random moments. It loses no event, and only attempts that
// were in flight are repeated.
func TestKilledUnderLoad(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{AOF: true})
	h := newInstallation(t, server.URL(), briefRetries)
	tr := newTrial(t, server.Client(), h)
	signals := append(slices.Repeat([]os.Signal{syscall.SIGKILL}, kills), syscall.SIGQUIT)
	for _, signal := range signals {
		tr.grow(rand.IntN(100))
		pause.For(t.Context(), rand.N(200*time.Millisecond))
		tr.daemons[0].signal(signal)
		tr.daemons[0].ended(t)
		tr.replace(0, h.startChild(t))
	}
	tr.grow(100)
	tr.finish()
}
