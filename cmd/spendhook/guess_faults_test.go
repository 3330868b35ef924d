//go:build faults

package main

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// busy is what a p99 may be on a machine that does other things as well: a few
// turns of the scheduler. Hashing a thousand secrets a second would need thirty
// cores, and hold others up for far longer.
const busy = 50 * time.Millisecond

// TestGuessingHoldsNobodyUp sends 10,000 wrong secrets to the token endpoint, a
// thousand a second, while other requests are timed: their p99 must stay under
// three times what it was just before. Hashing them all would take minutes of a
// CPU. Sent as fast as they go, they are refused as fast as the machine can make
// them, and what is then measured is the guessers' own share of its cores.
func TestGuessingHoldsNobodyUp(t *testing.T) {
	const guesses, guessers, samples = 10_000, 8, 1500
	h := newHouse(t, sharedRedis(t), quickRetries)
	d := h.startChild(t)
	made := h.auth(t, "client", "create", "--name", "victim", "--company", developerCompany.String(), "--scope", "events:read", "--json")
	made.want(t, exitOK, "shc_", "")
	client := unmarshal[shownClient](t, made.stdout)
	if code, body := d.ask(t, client.ID, client.Secret, ""); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}

	p99 := func(enough func(n int) bool) (time.Duration, int) {
		var took []time.Duration
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for !enough(len(took)) {
			<-tick.C
			began := time.Now()
			if status, _, body := d.do(t, http.MethodGet, "/api/v1/subscribers", ""); status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)*99/100], len(took)
	}
	p99(func(n int) bool { return n >= 200 }) // warm
	quiet, _ := p99(func(n int) bool { return n >= samples })

	var left, refused, limited, others atomic.Int64
	left.Store(guesses)
	var group sync.WaitGroup
	began := time.Now()
	for range guessers {
		group.Go(func() {
			pace := time.NewTicker(guessers * time.Millisecond)
			defer pace.Stop()
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				<-pace.C
				switch code, _ := d.ask(t, client.ID, "shs_"+strconv.FormatInt(n, 10), ""); code {
				case http.StatusUnauthorized:
					refused.Add(1)
				case http.StatusTooManyRequests:
					limited.Add(1)
				default:
					others.Add(1)
				}
			}
		})
	}
	loud, n := p99(func(int) bool { return left.Load() <= 0 })
	group.Wait()
	t.Logf("p99 quiet %v, while %d wrong secrets came in %v: %v (%d requests); %d hashed, %d limited, %d others",
		quiet, guesses, time.Since(began).Round(time.Millisecond), loud, n, refused.Load(), limited.Load(), others.Load())
	if limit := max(3*quiet, busy); loud >= limit {
		t.Errorf("p99 %v, want below %v", loud, limit)
	}
	if refused.Load() > 200 || limited.Load() < guesses*9/10 {
		t.Error("guesses are not limited")
	}
	if code, body := d.ask(t, client.ID, client.Secret, ""); code != http.StatusOK {
		t.Errorf("the client itself afterwards: %d %s", code, body)
	}
}
