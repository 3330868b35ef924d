//go:build faults

package main

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestGuessesDoNotBlockOthers sends 10,000 wrong secrets to the token endpoint without pause.
// All are refused. Other requests are answered meanwhile, and new clients get tokens. The
// scenario "guess" of the bench measures the latencies: here the guesses, the daemon and the
// race detector share the cores.
func TestGuessesDoNotBlockOthers(t *testing.T) {
	const guesses, guessers = 10_000, 8
	h := newInstallation(t, sharedRedis(t), quickRetries)
	d := h.startChild(t)
	client := func() createdClient {
		made := h.auth(t, "client", "create", "--name", "victim", "--company", developerCompany.String(), "--scope", "events:read", "--json")
		made.want(t, exitOK, "shc_", "")
		return unmarshal[createdClient](t, made.stdout)
	}
	victim := client()
	var next, others atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range guessers {
		group.Go(func() {
			for n := next.Add(1); n <= guesses; n = next.Add(1) {
				if code, _ := d.ask(t, victim.ID, "shs_"+strconv.FormatInt(n, 10), ""); code != http.StatusUnauthorized {
					others.Add(1)
				}
			}
		})
	}
	served := 0
	for ; next.Load() <= guesses && !t.Failed(); served++ {
		if status, _, body := d.do(t, http.MethodGet, "/api/v1/subscribers", ""); status != http.StatusOK {
			t.Errorf("another request: %d %s", status, body)
		}
		if served%100 == 0 {
			victim := client()
			if code, body := d.ask(t, victim.ID, victim.Secret, ""); code != http.StatusOK {
				t.Errorf("a new client: %d %s", code, body)
			}
		}
	}
	group.Wait()
	t.Logf("%d wrong secrets in %v; %d other requests meanwhile", guesses, time.Since(began).Round(time.Millisecond), served)
	if others.Load() > 0 {
		t.Errorf("%d guesses were not refused", others.Load())
	}
	if code, body := d.ask(t, victim.ID, victim.Secret, ""); code != http.StatusOK {
		t.Errorf("the client itself: %d %s", code, body)
	}
}
